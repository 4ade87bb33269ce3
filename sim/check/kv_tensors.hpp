// The keys and values of a batch of sequences, in whichever of the usual forms a file has them.
//
//     dense   k, v [batch, tokens, kv_heads, head_dim], optional lengths [batch]
//     ragged  k, v [total, kv_heads, head_dim], kv_indptr [batch + 1]; without kv_indptr one sequence
//     paged   k, v [pages, page_size, kv_heads, head_dim], kv_indptr [batch + 1], kv_indices,
//             kv_last_page_len [batch]
//
// With kv_layout=HND KV heads stand before tokens. v may have another head_dim: value_dim.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/traces/kv_cache.hpp>

#include "check_file.hpp"

namespace kvbound::sim {

/// The option kv_layout. Throws TraceError unless it is NHD or HND.
traces::KvLayout kv_layout(const traces::MetadataFields& options);

class KvTensors {
 public:
  enum class Part { keys, values, both };

  /// part    which tensors are read
  /// throws  TraceError for tensors that are missing, or do not fit each other
  explicit KvTensors(CheckFile& file, Part part = Part::both);

  int64_t sequences() const { return std::ssize(sequences_); }
  int64_t tokens(int64_t sequence) const { return sequences_[sequence].tokens; }
  int64_t kv_heads() const { return file_.length("kv_heads"); }
  int64_t head_dim() const { return keys_.head_dim; }
  int64_t value_dim() const { return values_.head_dim; }

  /// [kv_heads, tokens, head_dim] of one sequence. Throw TraceError for NaN and infinity.
  Tensor keys(int64_t sequence) const;
  Tensor values(int64_t sequence) const;

 private:
  const traces::TensorEntry& find(const char* name, const char* head_dim, traces::KvCacheShape& shape);
  void refuse_beside(const char* tensor, const char* cache) const;
  void find_dense();
  void find_ragged();
  void find_pages();

  CheckFile& file_;
  const traces::TensorEntry *key_entry_ = nullptr, *value_entry_ = nullptr;
  traces::KvCacheShape keys_, values_;
  bool paged_ = false;
  std::vector<traces::KvSequence> sequences_;
};

}  // namespace kvbound::sim
