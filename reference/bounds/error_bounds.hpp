// Bounds on the difference, through rounding alone, of another implementation's results from the reference's.
//
// All bounds are derived (reference/bounds/error_bounds.md) from one model of arithmetic
// and the sums of absolute terms of the given inputs; no constant is tuned. They hold for
// any order of summation within the accumulation depth, with or without fused multiply-add.
// Errors are absolute and per element; those of the double reference itself are included.
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

/// In place of a number of terms: any.
inline constexpr int64_t kAnyTile = -1;

/// The arithmetic in which results were computed.
struct Arithmetic {
  double unit = 0;      ///< u: relative error of one addition or multiplication
  double smallest = 0;  ///< the smallest normal number: smaller results may be flushed to 0
  /// Relative error of an exponential or logarithm, and of a rescaling by an exponential.
  double exponential = 0;
  double input = 0;  ///< relative rounding of every stored input; 0: the same numbers as the reference's
  /// Absolute rounding of stored inputs below the normal range of their storage type.
  double input_floor = 0;
  double weights = 0;  ///< further relative rounding of attention weights before they multiply values
  /// Absolute rounding of those weights, as a share of the largest one, below the normal range of their type.
  double weights_floor = 0;
  /// Rounding of the attention weights that are a host's scores of a prompt, or that changes are formed
  /// from: relative, and absolute.
  double score_weights = 0;
  double score_weights_floor = 0;
  /// The same of the outputs of the cache's parts, before they are merged: relative, and absolute.
  double partials = 0;
  double partials_floor = 0;
  int64_t splits = 0;  ///< the most parts; 0: not declared (error_bounds.md, "Long sums")
  /// Terms of a sum over tokens that are added, in any order, before their sum is handed on; 0: not declared;
  /// kAnyTile: sums are in any order.
  int64_t tile = 0;

  // As in KernelArithmetic.
  int64_t accumulation_depth = -1;
  int64_t product_depth = -1;
  int64_t length_depth = -1;
  double tensor_sums = 0;
  int64_t tensor_chain = 1;
  double tensor_weighted_sums = 0;
  double tensor_lengths = 0;
  double lengths_floor = 0;
  bool gram_factor = false;
  int64_t rescalings = -1;

  /// The error of a chain of partial sums as a share of the sum of its terms' absolute values.
  double tensor_share() const {
    const double share = static_cast<double>(tensor_chain) * tensor_sums;
    return tensor_chain == 1 ? share : share * (1 + share);
  }

  /// The same arithmetic for sums in an unknown order.
  Arithmetic in_any_order() const {
    Arithmetic result = *this;
    result.accumulation_depth = result.product_depth = result.length_depth = -1;
    return result;
  }
};

/// The arithmetic that a kernel declares, with the rounding errors of its precision.
Arithmetic arithmetic_of(const KernelArithmetic& kernel);

/// IEEE single precision, correctly rounded; exponentials are accurate to 2 ulp.
Arithmetic single_precision();
/// Tensor cores with fp32 accumulation: the addends of a product are aligned and
/// truncated instead of rounded.
Arithmetic tensor_core_precision();
/// IEEE double precision.
Arithmetic double_precision();

/// Bounds for attention_logits, logits[i, j] = scale * queries[i,:] . keys[j,:].   returns [queries, tokens]
Matrix logit_errors(MatrixView queries, MatrixView keys, double scale, const Arithmetic& arithmetic);

/// Errors of a cache's keys and values that were themselves computed, without the rounding of their storage.
struct CacheErrors {
  MatrixView keys;    ///< [tokens, head_dim]; no rows: keys are exact
  MatrixView values;  ///< [tokens, head_dim]; no rows: values are exact
  bool in_order =
      true;  ///< whether the tokens are added in the order in which they stand here, or against it
};

struct AttentionErrors {
  Matrix output;  ///< [queries, head_dim]
  Matrix own;     ///< [queries, head_dim]: the part of `output` that comes from no error of a weight
  Matrix lost;    ///< [queries, head_dim]: that of weights below the normal range of their type
  std::vector<double> log_sum_exp;  ///< [queries]
  /// [queries, tokens]: divided by their sum, or formed from the log-sum-exp; before they are rounded
  /// for the product with values
  Matrix weights;
  Matrix logits;                ///< [queries, tokens], without votes
  Matrix log_weights;           ///< [queries, tokens]: ln A, the reference's, with votes
  Matrix exponents;             ///< [queries, tokens]: of each exponential, as a logarithm
  std::vector<double> divisor;  ///< [queries]: relative, of the number that divides the sum of all weights
  /// [queries]: what a weight may lose below the normal range of its type, as a share of all
  std::vector<double> weights_floor;
  std::vector<double> rescalings = {};  ///< [queries]: the most of the partial sums of one part of the cache
  /// [queries, head_dim], where partials are rounded: the largest sum, over the parts, of the absolute values
  /// of what they hold of the output.
  Matrix parts = {};
  bool exact_inputs = true;  ///< whether queries, keys and values are the tested implementation's, bit by bit
};
/// Bounds for reference::attention with the same arguments. They
/// also cover rescaling (online softmax) and splitting the tokens.
AttentionErrors attention_errors(MatrixView queries, MatrixView keys, MatrixView values, double scale,
                                 VectorView votes, const Arithmetic& arithmetic,
                                 const CacheErrors& cache = {});

/// The bound of a log-sum-exp that a kernel hands out, in natural units: of the sum of its weights before or
/// after they are rounded, to any base, from any other.
///
/// error        AttentionErrors::log_sum_exp
/// log_sum_exp  the reference's
double stated_log_sum_exp_error(double error, double log_sum_exp, int64_t tokens,
                                const Arithmetic& arithmetic);

/// Bounds for reference::window_attention.   returns [query_heads, n]
Matrix window_attention_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic);

/// Bounds for the log-sum-exp of every window query.   returns [query_heads, window]
Matrix window_log_sum_exp_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic);

/// Bounds for reference::max_pool of scores with the given errors; pooling itself is exact.
///
/// returns  the shape of errors
Matrix max_pool_errors(MatrixView errors, int64_t width);

/// Bounds for reference::group_mean of scores with the given errors.
///
/// returns  [query_heads / group_size, entries]
Matrix group_mean_errors(MatrixView scores, MatrixView errors, int64_t group_size,
                         const Arithmetic& arithmetic);

/// Bounds for reference::projected_value_norms; arithmetic.accumulation_depth is over the model_dim columns.
/// With arithmetic.gram_factor those of L2 norms are of norms by the factor of a Gram matrix.
///
/// norms         [query_heads, tokens]: the reference's
/// value_errors  [kv_heads, tokens, head_dim]: absolute errors of values that were computed
///               themselves; no rows: none
/// returns       [query_heads, tokens]
Matrix projected_value_norm_errors(const LayerShape& shape, TensorView values, MatrixView output_projection,
                                   Norm norm, MatrixView norms, const Arithmetic& arithmetic,
                                   TensorView value_errors = {});

/// Bounds for reference::stage_two_scores of arguments with the errors head_errors and norm_errors.
///
/// returns  [entries]
std::vector<double> stage_two_score_errors(MatrixView head_scores, MatrixView head_errors, MatrixView norms,
                                           MatrixView norm_errors, double epsilon, GqaProduct gqa,
                                           const Arithmetic& arithmetic);

}  // namespace kvbound::reference
