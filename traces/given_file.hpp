// Files of kept sets or scores that were computed elsewhere, for the host `given`. Format: traces/README.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/reference/core/given_layer.hpp>
#include <kvbound/reference/core/session.hpp>

#include "safetensors.hpp"

namespace kvbound::traces {

/// What a file must be of: a trace, or a task of evaluate.
struct GivenSubject {
  std::string field;  ///< of __metadata__ that names it: trace_sha256 or task_id
  std::string id;     ///< that field's text
  std::string what;   ///< in messages, such as "the hash of trace.safetensors"
  LayerShape shape;
  int64_t layers = 0;           ///< of the trace or model
  int64_t prompt_tokens = 0;    ///< n
  std::vector<int64_t> wanted;  ///< layers that the file must have, ascending
};

/// One file, opened and checked but for its scores and positions.
class GivenFile {
 public:
  /// Throws TraceError, naming file, tensor or field, what was found and what was expected: for a file that
  /// is not of this subject, that lacks a wanted layer or a tensor, or has one of a wrong type or shape, an
  /// unknown one, or kept sets and scores; IoError.
  GivenFile(const std::string& path, const GivenSubject& subject);

  const std::string& path() const { return file_->path(); }
  /// What the file calls its method; empty if it has no name.
  const std::string& name() const { return name_; }
  const std::vector<int64_t>& always_kept() const { return always_kept_; }
  /// Whether it has kept sets.
  bool keeps() const { return keeps_; }
  /// [layers]: of kept sets, the entries per KV head of every layer that the file has, at least 1, rounded
  /// down; of other layers, the mean of those. Empty if the file has scores.
  const std::vector<int64_t>& layer_entries() const { return layer_entries_; }
  std::string sha256() const;

  /// A wanted layer. Throws TraceError for positions that do not ascend or are out of range, and for
  /// scores that are NaN or beyond single precision, in which devices compute; for a file that was
  /// truncated after it was opened; IoError.
  std::shared_ptr<const GivenLayer> read_layer(int64_t layer) const;

 private:
  const TensorEntry* find(int64_t layer, const char* tensor) const;
  const TensorEntry& require(int64_t layer, const char* tensor) const;
  void check_name(const TensorEntry& entry) const;
  void check_layer(int64_t layer);
  void require_shape(const TensorEntry& entry, const std::vector<int64_t>& shape, const char* meaning) const;
  void require_scores(const TensorEntry& entry, int64_t rows, const char* meaning) const;
  std::vector<int64_t> positions_of(const TensorEntry& entry) const;
  void require_ascending(const TensorEntry& entry, int64_t first, std::span<const int64_t> positions) const;
  std::vector<int64_t> offsets_of(int64_t layer) const;
  Matrix scores_of(const TensorEntry& entry) const;

  std::unique_ptr<SafetensorsFile> file_;
  GivenSubject subject_;
  std::string name_;
  bool keeps_ = false;
  std::vector<int64_t> always_kept_, layer_entries_;
};

/// A path that names one file, or a folder of files, each of another trace or task.
class GivenSource {
 public:
  /// Of a folder, whose files end in .safetensors and are of any format, reads the metadata.
  /// Throws TraceError, IoError.
  explicit GivenSource(const std::string& path);

  /// The file of this subject. Throws TraceError if a folder has none or several; as GivenFile.
  GivenFile open(const GivenSubject& subject) const;

 private:
  std::string path_;
  bool is_folder_ = false;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> found_;  // by field and text
};

}  // namespace kvbound::traces
