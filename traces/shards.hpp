// The files of one trace or checkpoint: a single safetensors file, or an *.index.json and its
// shards in the same folder.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors.hpp"

namespace kvbound::traces {

/// A tensor and the file that holds it.
struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  const TensorEntry* entry = nullptr;

  explicit operator bool() const { return entry != nullptr; }
};

class ShardSet {
 public:
  /// A trace's shards hold exactly the tensors that the index assigns to them. Those of a checkpoint are what
  /// is taken, as transformers does: they may hold others, and lack some, which are then not found.
  enum class Kind { trace, checkpoint };

  /// A path that ends in .index.json is an index, `{"metadata": {...}, "weight_map": {tensor:
  /// file}}`; any other path is a safetensors file. Shards are named without a folder, because
  /// they are in the index's own.
  ///
  /// throws  TraceError for an ill-formed file, or an index and shards that contradict each other; IoError
  ShardSet(const std::string& path, int64_t header_limit, Kind kind = Kind::trace);

  const std::string& path() const { return path_; }
  /// All files that are read: the single one, or the index and its shards.
  std::vector<std::string> paths() const;
  /// The metadata of the single file, or of the index if that is of a trace ("format" = "kvbound-trace"),
  /// otherwise of the first shard that is.
  const Metadata& metadata() const { return metadata_; }
  const std::map<std::string_view, StoredTensor>& tensors() const { return tensors_; }
  /// The tensor of that name; converts to false if there is none.
  StoredTensor find(std::string_view name) const;

  /// SHA-256 of the index's bytes, if there is an index, followed by each file's in
  /// ascending order of their names.
  ///
  /// progress  called with the bytes done and the total; may be empty
  std::string sha256(const std::function<void(int64_t, int64_t)>& progress) const;

 private:
  void open_shards(int64_t header_limit, Kind kind);
  void add_tensors(const SafetensorsFile& file, const std::map<std::string, std::string>& shard_of,
                   Kind kind);

  std::string path_;
  std::unique_ptr<InputFile> index_;  // null for a single file
  std::deque<SafetensorsFile> files_;
  Metadata metadata_;
  std::map<std::string_view, StoredTensor> tensors_;
};

}  // namespace kvbound::traces
