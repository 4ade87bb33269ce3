// The files to which one command writes its dumps.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/temporary_name.hpp>

namespace kvbound::sim {

/// A single dump of a single trace goes to a file, or into a folder if the target is one or ends
/// in a slash. Several dumps go to a folder; with several traces, each has a folder of its own in
/// it, named like the trace.
class DumpTargets {
 public:
  /// Adds every dump's file to `outputs`. No folder is created yet.
  ///
  /// throws  UsageError if the target is a file where a folder is needed, two traces have the same
  ///         name, or a dump would replace another file of this command; IoError if a single
  ///         file's folder does not exist
  DumpTargets(const std::string& target, const std::vector<std::string>& traces, const std::vector<Run>& runs,
              OutputPaths& outputs);
  /// Removes the folders that make_folders created and that are still empty; so does a
  /// signal that ends the program.
  ~DumpTargets();
  DumpTargets(const DumpTargets&) = delete;
  DumpTargets& operator=(const DumpTargets&) = delete;

  /// An existing folder on the targets' disk; the system's temporary folder if the target is a device.
  std::string spool_folder() const;
  /// The path of a run's dump of the trace with this index.
  std::string path(size_t trace, const Run& run) const;

  /// Creates the folders that do not exist yet. Throws IoError.
  void make_folders();

 private:
  bool single_file_;
  std::vector<std::filesystem::path> targets_;  // per trace: the file or the folder
  std::vector<traces::TemporaryName> made_;     // folders created, each before those in it
};

}  // namespace kvbound::sim
