// `check scores`, `check norms` and `check merge`: steps of a compression of one layer's
// prompt, without a trace.
//
// q [window, query_heads, head_dim] are the prompt's last queries, k and v its cache [n, kv_heads, head_dim]
// (kv_tensors.hpp, one sequence), w_o [query_heads * head_dim, model_dim] the rows of the output projection.
// Results have the names and shapes of a dump (sim/README.md) without the layer. Options: policy, budget,
// sm_scale, kv_layout, storage, and the arithmetic.
#pragma once

#include "check_file.hpp"
#include "check_result.hpp"

namespace kvbound::sim {

/// Judges `score` [kv_heads, m], and `stage_two_score` if it is there, of the policy's host (snapkv): q, k; v
/// where the policy's score needs values; w_o where it needs W^O. Throws TraceError.
CheckResult check_scores(CheckFile& file);

/// Judges `norms` [query_heads, n] = || v_j W^O_h ||: v, w_o; norm is l1 or l2. Throws TraceError.
CheckResult check_norms(CheckFile& file);

/// Judges `kept` with `kept_offsets`, and of what the policy merged `target_of`, `votes`, `merged_key`,
/// `merged_value`, those that are there: q, k, v; w_o where the policy needs it. Throws TraceError.
CheckResult check_merge(CheckFile& file);

}  // namespace kvbound::sim
