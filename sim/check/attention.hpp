// `check attention`: outputs of a decode or prefill kernel against softmax attention in double precision.
#pragma once

#include <cstdint>
#include <functional>

#include "check_file.hpp"
#include "check_result.hpp"

namespace kvbound::sim {

/// Judges `out`, and `lse` if it is there, element by element and each output as a whole.
///
///     z_ij   = sm_scale q_i . k_j      over the tokens j that query i sees
///     out_i  = sum_j e^z_ij v_j / sum_j e^z_ij
///     lse_i  = ln sum_j e^z_ij         lse_base=2: log2
///
/// q    [batch, query_heads, head_dim]: one query for each sequence, its last token; with qo_indptr
///      [batch + 1], or where k has one sequence, [queries, query_heads, head_dim]: the last queries of each
/// k, v kv_tensors.hpp
/// out  as q with v's head_dim; lse [.., query_heads]
///
/// Options: sm_scale (1/sqrt(head_dim)), causal, window_left (-1: none; a query sees so many tokens
/// before its own), kv_layout, lse_base, storage (the type that the kernel rounds its inputs to, if
/// theirs is wider), and the arithmetic (declared_arithmetic.hpp). A sequence without tokens has
/// outputs 0 and lse -infinity.
///
/// progress  called after each sequence with the queries done, and all
/// throws    TraceError for tensors and options that are missing or do not fit each other, and NaN or
///           infinity among the inputs
CheckResult check_attention(CheckFile& file, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace kvbound::sim
