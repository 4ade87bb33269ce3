// The results of an item, as a file: exact numbers in CBOR.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/report/environment.hpp>

namespace kvbound::sim {

/// What one run of an item recorded: a part of a RunResult.
struct RunPart {
  std::string key;  ///< key_of(Run)
  double compress_seconds = 0, step_seconds = 0;
  std::vector<LayerMetrics> layers;  ///< in the order of the item's layers
  std::optional<std::vector<JudgedTensor>> agreement;
};

struct ItemResult {
  Computation computation;  ///< of the program
  Environment environment;  ///< where it ran
  std::string host;
  double seconds = 0;  ///< wall time of the item, reading the layers included
  std::vector<int64_t> layers;
  std::vector<RunPart> runs;
  std::vector<BackendTimes> times;
};

/// The file's contents: the SHA-256 of the rest in hexadecimal, and CBOR. Numbers are exact, infinity
/// included; NaN is NaN, without its sign.
std::string bytes_of(const ItemResult& result);

/// Whether bytes begin with the hash of the rest: no disk and no copy damaged them.
bool has_its_hash(std::string_view bytes);

/// Throws TraceError, naming the path and what a plan should have less of, if bytes_of an item are more
/// than item_result_of reads.
void require_readable(const std::string& path, std::string_view bytes);

/// Throws TraceError, naming the path, for bytes that bytes_of did not write: cut off,
/// changed, of another version.
ItemResult item_result_of(const std::string& path, std::string_view bytes);

}  // namespace kvbound::sim
