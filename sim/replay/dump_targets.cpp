#include "dump_targets.hpp"

#include <unistd.h>
#include <cerrno>
#include <set>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/messages.hpp>

#include "dump.hpp"

namespace kvbound::sim {

namespace fs = std::filesystem;

DumpTargets::DumpTargets(const std::string& target, const std::vector<std::string>& traces,
                         const std::vector<Run>& runs, OutputPaths& outputs)
    : single_file_(runs.size() == 1 && traces.size() == 1 && !target.ends_with('/') &&
                   !fs::is_directory(target)) {
  if (target.empty()) throw UsageError("--dump: an empty file name");
  if (!single_file_ && fs::exists(target) && !fs::is_directory(target)) {
    throw UsageError(
        fmt::format("--dump {}: several dumps need a folder, but this is not one", traces::quoted(target)));
  }
  std::set<std::string> names;
  for (const std::string& trace : traces) {
    const std::string name = fs::path(trace).stem().string();
    if (traces.size() > 1 && (name.empty() || name == "." || name == "..")) {
      throw UsageError(
          fmt::format("--dump: a trace called {} can have no folder of that name", traces::quoted(trace)));
    }
    if (!names.insert(name).second) {
      throw UsageError(fmt::format(
          "--dump: two traces are called {}, so their dump folders would be the same", traces::quoted(name)));
    }
    targets_.push_back(traces.size() == 1 ? fs::path(target) : fs::path(target) / name);
  }
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const Run& run : runs) outputs.add("dump", path(i, run));
  }
  const fs::path folder = fs::path(target).parent_path();
  if (single_file_ && !folder.empty() && !fs::is_directory(folder)) {
    throw IoError(fmt::format("cannot create {}: there is no folder {}", without_middle(target),
                              without_middle(folder.string())));
  }
  if (single_file_ && fs::exists(target) && access(target.c_str(), W_OK) != 0) {
    throw traces::io_error("write", target, errno);
  }
}

DumpTargets::~DumpTargets() {
  while (!made_.empty()) made_.pop_back();
}

std::string DumpTargets::spool_folder() const {
  if (single_file_ && fs::is_other(targets_.front())) return fs::temp_directory_path().string();
  fs::path folder = single_file_ ? targets_.front().parent_path() : targets_.front();
  while (!folder.empty() && !fs::is_directory(folder)) folder = folder.parent_path();
  return folder.empty() ? "." : folder.string();
}

std::string DumpTargets::path(size_t trace, const Run& run) const {
  return single_file_ ? targets_[trace].string() : (targets_[trace] / dump_name(run)).string();
}

void DumpTargets::make_folders() {
  if (single_file_) return;
  for (const fs::path& folder : targets_) {
    std::vector<fs::path> missing;
    for (fs::path path = folder; !path.empty() && !fs::exists(path); path = path.parent_path())
      missing.push_back(path);
    for (; !missing.empty(); missing.pop_back()) made_.emplace_back(missing.back().string());
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      throw IoError(
          fmt::format("cannot create folder {}: {}", without_middle(folder.string()), error.message()));
  }
}

}  // namespace kvbound::sim
