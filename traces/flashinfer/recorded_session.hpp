// All calls that one FLASHINFER_DUMP_DIR holds, in the order in which FlashInfer replays them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "recorded_call.hpp"

namespace kvbound::traces {

class RecordedSession {
 public:
  /// Called with the calls read, and their number.
  using Progress = std::function<void(int64_t, int64_t)>;

  /// Reads the metadata of every call, which is a folder with a file metadata.jsonl, in ascending order of their names, which
  /// begin with the time. Throws TraceError for a folder without calls, metadata that are not well-formed, or a call's
  /// folder that is a symbolic link; IoError.
  explicit RecordedSession(const std::string& folder, const Progress& progress = {});

  const std::string& folder() const { return folder_; }
  const std::vector<RecordedCall>& calls() const { return calls_; }
  /// number: from 1, as FlashInfer's replay numbers them. Throws InvalidOption for a number that no call has.
  const RecordedCall& call(int64_t number) const;

  /// The last call of `method` on the object of `run` before it; null if there is none since the object was constructed.
  /// Times are recorded in milliseconds, and in one of them `method` is taken to precede `run`. Throws TraceError if there
  /// is an earlier call of `method` as well, so that either may be the last one.
  const RecordedCall* last_before(const RecordedCall& run, const std::string& method) const;

 private:
  std::string folder_;
  std::vector<RecordedCall> calls_;
};

}  // namespace kvbound::traces
