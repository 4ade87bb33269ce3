// The quantities of the theorems by their definitions, in 50 digits: with a bound on each number's rounding
// error in double precision, and as reals those with which claims are checked.
#pragma once

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

#include "bounded.hpp"

namespace kvbound::oracle {

// ---- attention

/// scale * queries[i,:] . keys[j,:]
Rows logits(MatrixView queries, MatrixView keys, double scale);
/// ln sum exp(z)
Bounded log_sum_exp(const Row& logits);
Real log_sum_exp(const Reals& logits);
/// exp(z_j) / sum exp(z)
Row softmax(const Row& logits);
Reals softmax(const Reals& logits);
/// softmax over positions 0..first_position + i, 0 for later positions
Rows causal_softmax(const Rows& logits, int64_t first_position);

struct Attention {
  Rows output;
  Row log_sum_exp;
};
/// sum p exp(z) v / sum p exp(z); votes empty: all 1
Attention attention(MatrixView queries, MatrixView keys, MatrixView values, double scale,
                    VectorView votes = {});
/// The output alone, over entries that have error bounds.
Row attention(VectorView query, const Rows& keys, const Rows& values, const Row& votes, double scale);
/// ln p + z
template <class Number>
RowOf<Number> voted(const RowOf<Number>& votes, const RowOf<Number>& logits);

// ---- scores of a layer

/// (1/window) sum_i A_ij over the last `window` queries: [query_heads][n]
Rows window_attention(const LayerView& layer, int64_t window);
Rows max_pool(const Rows& scores, int64_t width);
Rows group_mean(const Rows& scores, int64_t group_size);
/// || values[i,:] W ||
Row projected_value_norms(MatrixView values, MatrixView output_projection, Norm norm);
/// Algorithm 1 of CriticalKV for one KV head; rows are the query heads of its group
Row stage_two_scores(const Rows& head_scores, const Rows& norms, double epsilon, GqaProduct gqa);

// ---- the change of one query's output by eviction. Functions without a suffix are the stable forms, needed
// for their error bounds; their values equal those of the definitions, which have the suffix `_as_printed`.

/// A' = A / sum of the kept A
template <class Number>
RowOf<Number> kept_attention_weights(const RowOf<Number>& attention_weights, IndexSet kept);
/// w_i = A_i if evicted, -e A'_i if kept, from the logits
Row eviction_weights(const Row& logits, IndexSet kept);
/// the same from attention weights of any sum, such as means over a window
template <class Number>
RowOf<Number> eviction_weights_of_mean(const RowOf<Number>& attention_weights, IndexSet kept);

/// || sum_i w_i V_i ||_1
Bounded output_perturbation(const Row& eviction_weights, MatrixView values, MatrixView output_projection);
/// || sum_i A_i V_i - sum_i A'_i V_i ||_1
Bounded output_perturbation_as_printed(const Row& attention_weights, MatrixView values,
                                       MatrixView output_projection, IndexSet kept);
/// sum_i |w_i| N_i
template <class Number>
Number perturbation_bound(const RowOf<Number>& eviction_weights, const RowOf<Number>& norms);
/// the same from attention weights: sum_{evicted} A N + (e / Sigma) S
template <class Number>
Number perturbation_bound(const RowOf<Number>& attention_weights, const RowOf<Number>& norms, IndexSet kept);
/// C - (2 - 1/Sigma) S
template <class Number>
Number perturbation_bound_as_printed(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                                     IndexSet kept);
/// sum_{evicted} A N + ((1 - sigma) / sigma) sum_{kept} A N
template <class Number>
Number stage_two_bound(const RowOf<Number>& attention_weights, const RowOf<Number>& norms, IndexSet stage_one,
                       IndexSet kept);
/// C' - (2 - 1/sigma) S''
template <class Number>
Number stage_two_bound_as_printed(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                                  IndexSet stage_one, IndexSet kept);
/// sum_{evicted} A N + sum_{two} A (N - M) + ((1 - sigma) / sigma) (sum_{one} A N + M sum_{two} A)
template <class Number>
Number attention_only_bound(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                            IndexSet stage_one, IndexSet kept);
/// C' - M (2 - 1/sigma) sum_{stage two} A
template <class Number>
Number attention_only_bound_as_printed(const RowOf<Number>& attention_weights, const RowOf<Number>& norms,
                                       IndexSet stage_one, IndexSet kept);

}  // namespace kvbound::oracle
