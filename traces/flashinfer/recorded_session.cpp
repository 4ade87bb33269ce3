#include "recorded_session.hpp"

#include <algorithm>
#include <filesystem>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/generate.hpp>

namespace kvbound::traces {
namespace {

namespace fs = std::filesystem;

bool is_link(const fs::path& path) { return fs::is_symlink(fs::symlink_status(path)); }

// The folders of all calls, in ascending order of their names.
std::vector<std::string> call_folders(const std::string& folder) {
  std::vector<std::string> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!fs::exists(fs::symlink_status(entry.path() / "metadata.jsonl"))) continue;
    if (is_link(entry.path())) {
      throw TraceError(entry.path().string(), -1, "", "is a symbolic link; expected the folder of a call");
    }
    folders.push_back(entry.path().string());
  }
  std::ranges::sort(folders);
  return folders;
}

bool is_method(const RecordedCall& call, const std::string& method) {
  return call.function().ends_with("." + method);
}

}  // namespace

RecordedSession::RecordedSession(const std::string& folder, const Progress& progress) : folder_(folder) {
  const std::vector<std::string> folders = call_folders(folder);
  if (folders.empty()) {
    const bool is_call = fs::exists(fs::path(folder) / "metadata.jsonl");
    throw TraceError(
        folder, -1, "",
        is_call ? "is the folder of one call; expected the folder above it, FLASHINFER_DUMP_DIR"
                : "holds no calls; expected FLASHINFER_DUMP_DIR, with a metadata.jsonl in each folder in it");
  }
  for (const std::string& one : folders) {
    Entry& entry = calls_.emplace_back(Entry{fs::path(one).filename().string(), {}, nullptr});
    try {
      entry.call.emplace(one);
    } catch (const Error&) {
      entry.failure = std::current_exception();
    }
    if (progress) progress(std::ssize(calls_), std::ssize(folders));
  }
}

const RecordedCall& RecordedSession::call(int64_t number) const {
  if (number < 1 || number > size()) {
    throw InvalidOption("call " + std::to_string(number) + ": " + without_middle(folder_) +
                        " has calls 1 to " + std::to_string(size()));
  }
  const Entry& entry = calls_[static_cast<size_t>(number - 1)];
  if (entry.failure) std::rethrow_exception(entry.failure);
  return *entry.call;
}

const RecordedCall* RecordedSession::last_before(const RecordedCall& run, const std::string& method) const {
  const RecordedCall* found = nullptr;
  const std::string owner = run.function().substr(0, run.function().find('.') + 1);
  for (const Entry& entry : calls_) {
    if (!entry.call) {
      const auto may_be = [&](const std::string& name) {
        return entry.name.find("_" + owner + name + "_call") != std::string::npos;
      };
      if (entry.name < run.name() && (may_be(method) || may_be("__init__")))
        std::rethrow_exception(entry.failure);
      continue;
    }
    const RecordedCall& call = *entry.call;
    if (!call.same_object(run) || call.timestamp() > run.timestamp()) continue;
    if (is_method(call, method)) {
      if (found && call.timestamp() == run.timestamp()) {
        run.refuse("timestamp",
                   "is that of " + call.name() + ", too, so that it is unknown which of them came first");
      }
      found = &call;
    } else if (is_method(call, "__init__")) {
      found = nullptr;  // an older object at the same address
    }
  }
  return found;
}

}  // namespace kvbound::traces
