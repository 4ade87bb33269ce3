// The tensors of a dump, as a table: files are checked against it, and reports follow its order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// Names the length of one dimension of a tensor.
enum class Extent {
  steps,        ///< recorded decode steps: all of the trace's, or the first few
  query_heads,  ///< this and the extents up to window_queries are the trace's
  kv_heads,
  kv_head_offsets,  ///< kv_heads + 1
  head_dim,
  prompt_tokens,
  window_queries,     ///< the trace's recorded prompt queries
  scored,             ///< prompt entries that the host scores
  kept_of_all_heads,  ///< kept entries of all KV heads, one head after the other
  tokens,             ///< of the prompt and of the recorded decode steps
  rebuilds,           ///< recorded decode steps that begin with a rebuild
  kept_of_rebuilds,   ///< kept entries of all rebuilds, and in each of all KV heads, one after the other
};

/// Which cache a row of a tensor is of: what two dumps must have chosen alike for their rows to be
/// comparable to the last bit.
enum class CacheOf {
  none,      ///< the full cache, or none
  kept,      ///< the entries kept after the prompt, of the row's KV head
  prompt,    ///< the same with their clusters
  attended,  ///< the cache that the row's step attended to; without a head that of all KV heads
  history,   ///< the same, and all choices that led to it: scores sum up over them
  left,      ///< the same, and the step's eviction
  merged,    ///< the same, and the step's merge
  rebuilt,   ///< the row's rebuild
};

/// One kind of tensor: layers.{l}.NAME.
struct DumpTensor {
  std::string name;
  std::vector<Extent> shape;  ///< in C order
  bool integral = false;      ///< I64 or I32; otherwise F64, F32, F16 or BF16
  CacheOf cache = CacheOf::none;
  bool derived = false;  ///< follows from the kept sets: a verdict needs no evidence for it
  bool (*is_of)(const Policy&) =
      nullptr;               ///< whether dumps of a policy may have it; null: every policy's dumps may
  std::string only_of = {};  ///< completes "only policies that ...", as "merge"; empty: no such message
};

/// All kinds, each after those that it depends on: the first tensor that disagrees is
/// where a fault first shows.
const std::vector<DumpTensor>& dump_tensors();

/// Null if there is none of that name.
const DumpTensor* find_dump_tensor(std::string_view name);

/// Whether dumps of this policy may have the tensor.
bool has(const Policy& policy, const DumpTensor& tensor);

}  // namespace kvbound::sim
