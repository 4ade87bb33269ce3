// The tensors of a dump, as plain data: what a file's tensors are checked by, and what reports are ordered by.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// How long a tensor is in one of its dimensions.
enum class Extent {
  steps,              ///< recorded decode steps, or the first few of them
  query_heads,        ///< the trace's, as are those up to prompt_tokens
  kv_heads,
  kv_head_offsets,    ///< kv_heads + 1
  head_dim,
  prompt_tokens,
  scored,             ///< prompt entries that the host scores
  kept_of_all_heads,  ///< all KV heads' kept entries, one head after the other
};

/// One kind of tensor: layers.{l}.NAME.
struct DumpTensor {
  std::string name;
  std::vector<Extent> shape;                ///< in C order
  bool integral = false;                    ///< I64 or I32; else F64, F32, F16 or BF16
  bool derived = false;                     ///< follows from the kept sets: right if it is computed right at all
  bool (*is_of)(const Policy&) = nullptr;   ///< whether dumps of a policy may have it; null: of any policy
  std::string only_of = {};                 ///< which policies those are, as "merge"; empty: goes without saying
};

/// In the order in which each follows from those before: the first that differs is where a fault shows first.
const std::vector<DumpTensor>& dump_tensors();

/// Null if there is none of that name.
const DumpTensor* find_dump_tensor(std::string_view name);

/// Whether dumps of this policy may have the tensor.
bool has(const Policy& policy, const DumpTensor& tensor);

}  // namespace kvbound::sim
