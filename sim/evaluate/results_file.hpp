// The file in which results of finished tasks survive the program.
#pragma once

#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "task_result.hpp"

namespace kvbound::sim {

/// A JSON object a line: the first says of which evaluation the results are, every other is the result of a
/// task. A line that was cut off when the program died is dropped. Numbers are read back with the same bits.
class ResultsFile {
 public:
  /// Opens the file, or creates it.
  ///
  /// evaluation  an object of all on which results depend
  /// throws      TraceError if the file is something else, or of another evaluation, naming what differs;
  ///             IoError, also if another program has it open
  ResultsFile(const std::string& path, const nlohmann::ordered_json& evaluation);
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  const std::string& path() const { return path_; }
  /// The number of results.
  size_t size() const { return results_.size(); }
  /// A task's result; null if there is none.
  const TaskResult* find(const std::string& id) const;
  /// Adds a result, which is on the disk when the function returns. Its lists must be finite. Throws IoError.
  void add(const TaskResult& result);

 private:
  void read(const nlohmann::ordered_json& evaluation);
  void append(const nlohmann::ordered_json& line);

  std::string path_;
  int descriptor_ = -1;
  std::map<std::string, TaskResult> results_;
};

}  // namespace kvbound::sim
