// The files that a command writes its results to.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/output_file.hpp>

#include "cube.hpp"
#include "document.hpp"

namespace kvbound::sim {

/// Adds --json and --csv.
///
/// rows  what a row of CSV is of: "layer, step and query head"
void add_output_options(CommandLine& line, std::string_view rows);

/// What --json and --csv name. Contents go to temporary files, which may fail for lack of space; the files
/// get their names at the end, after all that was printed. Every function throws IoError.
class Outputs {
 public:
  /// Takes the options' paths. Throws UsageError if a file is among them already.
  Outputs(const CommandLine& line, OutputPaths& taken, std::string_view command);
  /// For a command that reads these inputs and writes nothing else.
  Outputs(const CommandLine& line, const std::vector<std::string>& inputs, std::string_view command);
  /// Call it when nothing is left that the user may have got wrong.
  void open();

  bool has_json() const { return json_path_.has_value(); }
  bool has_csv() const { return csv_path_.has_value(); }
  void add(const Part& part);
  /// CSV's headings, of parts that have these cubes; add() writes them, too, unless they are there.
  void add_headings(const Part& part);
  /// Everything that can fail.
  ///
  /// provenance  fields at the document's end
  void prepare(const Json& provenance);
  void commit();
  /// The whole document of one part: add, prepare and commit.
  void write(const Part& part, const Json& provenance);

 private:
  void take_paths(const CommandLine& line, OutputPaths& taken);

  std::string command_;
  std::optional<std::string> json_path_, csv_path_;
  std::optional<traces::OutputFile> json_file_, csv_file_;
  std::optional<DocumentWriter> json_;
  bool has_headings_ = false;
};

}  // namespace kvbound::sim
