// All calls that one FLASHINFER_DUMP_DIR holds, in the order in which FlashInfer replays them.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "recorded_call.hpp"

namespace kvbound::traces {

class RecordedSession {
 public:
  /// Called with the calls read, and their number.
  using Progress = std::function<void(int64_t, int64_t)>;

  /// Reads the metadata of every call, which is a folder with a file metadata.jsonl, in ascending order of
  /// their names, which begin with the time. Metadata that are not as RecordedCall needs them are refused
  /// when their call is asked for. Throws TraceError for a folder without calls, or a call's folder that is
  /// a symbolic link; IoError.
  explicit RecordedSession(const std::string& folder, const Progress& progress = {});

  const std::string& folder() const { return folder_; }
  /// Number of calls. They are numbered from 1, as FlashInfer's replay numbers them.
  int64_t size() const { return std::ssize(calls_); }
  /// Throws InvalidOption for a number that no call has, and TraceError or IoError if its
  /// metadata could not be read.
  const RecordedCall& call(int64_t number) const;

  /// The last call of `method` on the object of `run` before it; null if there is none since the object was
  /// constructed. Times are recorded in milliseconds, and in one of them `method` is taken to precede `run`.
  /// Throws TraceError if there is an earlier call of `method` as well, so that either may be the last one,
  /// and as call() for one whose metadata could not be read, if by its folder's name it may be the last one.
  const RecordedCall* last_before(const RecordedCall& run, const std::string& method) const;

 private:
  struct Entry {
    std::string name;  // of the call's folder
    std::optional<RecordedCall> call;
    std::exception_ptr failure;  // why there is no call
  };

  std::string folder_;
  std::vector<Entry> calls_;
};

}  // namespace kvbound::traces
