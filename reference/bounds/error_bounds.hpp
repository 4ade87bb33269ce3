// How far another implementation's results may differ from the reference's by rounding alone.
//
// All bounds are derived (reference/bounds/error_bounds.md) from one model of arithmetic, with the sums of absolute terms taken
// from the numbers at hand; no constant is tuned. They hold for any order of summation that an accumulation depth allows, with or
// without fused multiply-add. Errors are absolute and per element; those of the double reference itself are included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// The arithmetic that results were computed in.
struct Arithmetic {
  double unit = 0;  ///< u: one addition or multiplication is off by at most this share of its exact result
  double smallest = 0;     ///< the smallest normal number: anything below may be taken for 0
  double exponential = 0;  ///< relative error of an exponential or logarithm, and of a rescaling by one
  double input = 0;  ///< relative rounding of every stored input; 0: the same numbers as the reference's
  double input_floor = 0;  ///< and its absolute rounding, for numbers below the normal range of their storage
  double weights = 0;      ///< further relative rounding of attention weights before they multiply values

  // As in KernelArithmetic.
  int64_t accumulation_depth = -1;
  int64_t product_depth = -1;
  double tensor_sums = 0;
  int64_t rescalings = -1;

  /// The same for sums whose order nothing is known of.
  Arithmetic in_any_order() const {
    Arithmetic result = *this;
    result.accumulation_depth = result.product_depth = -1;
    return result;
  }
};

/// What a kernel declares, with the rounding of its precision.
Arithmetic arithmetic_of(const KernelArithmetic& kernel);

/// IEEE single precision, correctly rounded, exponentials within 2 ulp.
Arithmetic single_precision();
/// Tensor cores with fp32 accumulation: a product's addends are aligned and cut instead of rounded.
Arithmetic tensor_core_precision();
/// IEEE double precision.
Arithmetic double_precision();

/// logits[i, j] = scale * queries[i,:] . keys[j,:].   returns [queries, tokens]
Matrix logit_errors(MatrixView queries, MatrixView keys, double scale, const Arithmetic& arithmetic);

/// How far a cache's keys and values may be off beside what storing them costs, because they were computed, too.
struct CacheErrors {
  MatrixView keys;    ///< [tokens, head_dim]; no rows: not at all
  MatrixView values;  ///< [tokens, head_dim]; likewise
};

struct AttentionErrors {
  Matrix output;                    ///< [queries, head_dim]
  std::vector<double> log_sum_exp;  ///< [queries]
  Matrix weights;                   ///< [queries, tokens]
  Matrix logits;                    ///< [queries, tokens], without votes
};
/// Of reference::attention with the same arguments; rescaling and splitting the tokens allowed.
AttentionErrors attention_errors(MatrixView queries, MatrixView keys, MatrixView values, double scale,
                                 VectorView votes, const Arithmetic& arithmetic,
                                 const CacheErrors& cache = {});

/// Of reference::window_attention.   returns [query_heads, n]
Matrix window_attention_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic);

/// The log-sum-exp of every window query.   returns [query_heads, window]
Matrix window_log_sum_exp_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic);

/// Of reference::max_pool, whose arguments are off by `errors`: pooling adds nothing.   returns as errors
Matrix max_pool_errors(MatrixView errors, int64_t width);

/// Of reference::group_mean of scores that are off by `errors`.   returns [query_heads / group_size, entries]
Matrix group_mean_errors(MatrixView scores, MatrixView errors, int64_t group_size,
                         const Arithmetic& arithmetic);

/// Of reference::projected_value_norms; arithmetic.accumulation_depth is over the model_dim columns.   returns [query_heads, tokens]
Matrix projected_value_norm_errors(const LayerShape& shape, TensorView values, MatrixView output_projection,
                                   Norm norm, MatrixView norms, const Arithmetic& arithmetic);

/// Of reference::stage_two_scores, whose arguments are off by head_errors and norm_errors.   returns [entries]
std::vector<double> stage_two_score_errors(MatrixView head_scores, MatrixView head_errors, MatrixView norms,
                                           MatrixView norm_errors, double epsilon, GqaProduct gqa,
                                           const Arithmetic& arithmetic);

}  // namespace kvbound::reference
