#include "error_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/numerics/gram_factor.hpp>
#include <kvbound/reference/numerics/gram_norms.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/row_norms.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "long_sums.hpp"
#include "output_errors.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

// The arithmetic with no more rescalings than these logits cause, in the order of positions.
Arithmetic rescaled_by(VectorView logits, const Arithmetic& arithmetic) {
  Arithmetic result = arithmetic;
  result.rescalings = static_cast<int64_t>(rescalings_of(logits, arithmetic));
  return result;
}

// Visits the logits and softmax errors of every window query of one query head:
// visit(query, logits of the visible tokens, their exponents T, the softmax's errors).
template <class Visit>
void visit_window_softmax(const LayerView& layer, int64_t head, int64_t window, const Arithmetic& arithmetic,
                          const Visit& visit) {
  const MatrixView keys = layer.keys.slice(layer.shape.kv_head_of(head));
  const MatrixView queries = layer.queries.slice(head).middle_rows(layer.window_queries() - window, window);
  const Matrix logits = attention_logits(queries, keys, layer.scale);
  Matrix exponents = logit_errors(queries, keys, layer.scale, arithmetic);
  for (int64_t i = 0; i < window; ++i) {
    const int64_t visible = layer.prompt_tokens() - window + i + 1;
    const VectorView seen = logits.row(i).first(visible);
    const std::span<double> errors = exponents.row(i).first(visible);
    const SoftmaxErrors softmax = softmax_errors(seen, errors, rescaled_by(seen, arithmetic));
    visit(i, seen, errors, softmax);
  }
}

void require_window(const LayerView& layer, int64_t window) {
  if (window >= 1 && window <= layer.window_queries()) return;
  throw ShapeMismatch("window is " + std::to_string(window) + " but the layer has " +
                      std::to_string(layer.window_queries()) + " prompt queries");
}

// Adds the errors of logits that come from absolute errors of stored queries and keys.
void add_input_floor(MatrixView queries, MatrixView keys, double scale, const Arithmetic& arithmetic,
                     Matrix& errors) {
  const double floor = arithmetic.input_floor;
  const double share = 2 * std::abs(scale) * floor;  // 2 covers the products with other errors
  std::vector<double> key_sums;
  for (int64_t j = 0; j < keys.rows; ++j) key_sums.push_back(absolute_sum(keys.row(j)));
  for (int64_t i = 0; i < queries.rows; ++i) {
    const double both = absolute_sum(queries.row(i)) + static_cast<double>(queries.cols) * floor;
    for (size_t j = 0; j < key_sums.size(); ++j) errors.row(i)[j] += share * (both + key_sums[j]);
  }
}

// The relative error of a scaled product of a query and a key, with nothing known of
// the running sums of chains.
double logit_share(int64_t head_dim, const Arithmetic& arithmetic) {
  // Multiplications by the scale and, if logits are taken to base 2, by log2 e; each
  // factor is itself rounded.
  constexpr int64_t kScalings = 4;
  return product_error(head_dim, kScalings, arithmetic);
}

// Adds to logits' errors what chains of partial sums add: error_bounds.md, "Logits".
//
// share  of a logit's absolute terms: what is off by other operations
// sizes  the sums of these terms, scaled
void add_chain_errors(MatrixView queries, MatrixView keys, double scale, double share, const Matrix& sizes,
                      const Arithmetic& arithmetic, Matrix& errors) {
  constexpr int64_t kTerms = 16;
  const int64_t of_chain = arithmetic.tensor_chain * kTerms;
  const auto chain = static_cast<double>(arithmetic.tensor_chain);
  Matrix floors(errors.rows(), errors.cols()), running(errors.rows(), errors.cols());
  if (arithmetic.input_floor > 0) add_input_floor(queries, keys, scale, arithmetic, floors);
  for (int64_t last = kTerms; last < queries.cols; last += kTerms) {
    const int64_t first = last / of_chain * of_chain;
    if (last == first) continue;  // the next chain begins with zero
    const Matrix sums = attention_logits(queries.middle_cols(first, last - first),
                                         keys.middle_cols(first, last - first), scale);
    for (int64_t i = 0; i < running.rows(); ++i) {
      for (int64_t j = 0; j < running.cols(); ++j) running(i, j) += std::abs(sums(i, j));
    }
  }
  const double moved = chain * (arithmetic.input * (2 + arithmetic.input) + reference_error(queries.cols));
  const double truncated = (1 + share) * arithmetic.tensor_sums * (1 + arithmetic.tensor_share());
  for (int64_t i = 0; i < errors.rows(); ++i) {
    for (int64_t j = 0; j < errors.cols(); ++j) {
      const double addends = (1 + moved) * sizes(i, j) + running(i, j) + chain * floors(i, j);
      errors(i, j) += addends > 0 ? truncated * addends : 0;
    }
  }
}

// Adds the errors of logits that come from errors of computed keys: error_bounds.md,
// "Computed keys and values".
//
// share  logit_share: the relative error of a logit, as a share of the sum of its absolute terms
void add_key_errors(MatrixView queries, MatrixView key_errors, double scale, double share,
                    const Arithmetic& arithmetic, Matrix& errors) {
  if (key_errors.rows == 0) return;
  Matrix sizes = absolute(queries);
  for (int64_t i = 0; i < sizes.rows(); ++i) {
    for (double& size : sizes.row(i)) size += arithmetic.input_floor;
  }
  const Matrix moved = attention_logits(sizes, key_errors, (1 + share) * std::abs(scale));
  for (int64_t i = 0; i < errors.rows(); ++i) {
    // A key without a bound (infinite or NaN here, from 0 * infinity) gives a logit without a bound.
    for (int64_t j = 0; j < errors.cols(); ++j) {
      errors(i, j) += moved(i, j) < kInfinity ? moved(i, j) : kInfinity;
    }
  }
}

// What weights below the normal range of their type move weight A by (error_bounds.md),
// floor being phi_w (1 + y).
double lost_weight(double floor, int64_t tokens, double weight) {
  return floor > 0 ? floor * (1 + static_cast<double>(tokens) * weight) : 0;
}

// Adds votes to logits, and to their errors those of logarithms and sums.
void add_votes(VectorView votes, const Arithmetic& arithmetic, Matrix& logits, Matrix& errors) {
  for (size_t j = 0; j < votes.size(); ++j) {
    const double log_votes = std::log(votes[j]);
    const auto token = static_cast<int64_t>(j);
    for (int64_t i = 0; i < logits.rows(); ++i) {
      errors(i, token) += exponential(arithmetic) * std::abs(log_votes) +
                          2 * unit(arithmetic) * (std::abs(logits(i, token)) + std::abs(log_votes));
      logits(i, token) += log_votes;
    }
  }
}

// errors  in: of the logits; out: T
QuerySoftmax query_softmax(VectorView logits, std::span<double> errors, bool in_order,
                           const Arithmetic& arithmetic) {
  const Arithmetic rescaled = in_order ? rescaled_by(logits, arithmetic) : arithmetic;
  const SoftmaxErrors softmax = softmax_errors(logits, errors, rescaled);
  return {logits, errors, softmax, rescalings(rescaled, std::ssize(logits)), in_order};
}

// The errors of one query's weights: those that its output takes from them, and those
// of the weights themselves.
//
// log_sum_exp  its error
// returns      [tokens]
// themselves   [tokens]: divided by their sum, or formed from the log-sum-exp
std::vector<double> weight_errors(const QuerySoftmax& softmax, const SharedRounding& shared,
                                  double log_sum_exp, const Arithmetic& arithmetic,
                                  std::span<double> themselves) {
  const auto tokens = std::ssize(softmax.logits);
  const double adding =
      is_long(arithmetic, tokens) ? gamma(3, arithmetic) : component_error(tokens, arithmetic);
  const double common = growth(shared.divisor + shared.weights),
               with_adding = growth(shared.divisor + adding);  // weights as scores: not rounded for a product
  std::vector<double> errors;
  for (size_t j = 0; j < softmax.logits.size(); ++j) {
    const double weight = weight_of(softmax.logits[j], softmax.errors), exponent = softmax.exponents[j];
    const double share = softmax_share(weight, exponent, softmax.errors);
    const double by_log_sum = weight_error(weight, growth(exponent + log_sum_exp), arithmetic);
    errors.push_back(weight_error(weight, share + (1 + share) * common, arithmetic));
    const double by_sum = weight_error(weight, share + (1 + share) * with_adding, arithmetic);
    // Both weights are in 0..1.
    themselves[j] = std::max(by_sum, std::min(by_log_sum, 1.0));
  }
  return errors;
}

// Adds the errors of one query's output that come from errors of computed values, for weights with errors:
// error_bounds.md, "Computed keys and values".
void add_value_errors(const QuerySoftmax& softmax, VectorView weight_errors, const SharedRounding& shared,
                      MatrixView value_errors, const Arithmetic& arithmetic, int64_t query,
                      AttentionErrors& errors) {
  const auto tokens = std::ssize(softmax.logits);
  const double adding = growth(component_error(tokens, arithmetic)),
               widest = growth(shared.divisor + shared.weights + component_error(tokens, arithmetic));
  const double floor = arithmetic.weights_floor * (1 + widest);
  for (int64_t j = 0; j < value_errors.rows; ++j) {
    if (absolute_sum(value_errors.row(j)) == 0) continue;
    const double weight = weight_of(softmax.logits[j], softmax.errors);
    double most = std::min(1 + widest, (weight + weight_errors[j]) * (1 + adding));
    most = (1 + arithmetic.partials) * (most + lost_weight(floor, tokens, most));
    for (int64_t c = 0; c < value_errors.cols; ++c) {
      errors.own(query, c) += most * value_errors(j, c);
      errors.output(query, c) += most * value_errors(j, c);
    }
  }
}

bool is_zero(MatrixView errors) {
  for (int64_t j = 0; j < errors.rows; ++j) {
    if (absolute_sum(errors.row(j)) != 0) return false;
  }
  return true;
}

// || row ||, in either norm.
double row_norm(VectorView row, Norm norm) {
  double sum = 0;
  for (const double x : row) sum += norm == Norm::l1 ? std::abs(x) : x * x;
  return norm == Norm::l1 ? sum : std::sqrt(sum);
}

// What the running sums of chained partial sums add to a norm's error: sum_t || v_t W_t ||,
// over all beginnings v_t of a
// chain that end where a partial sum does.   returns [query_heads, tokens]; in L1 an upper bound
Matrix running_sum_norms(const LayerShape& shape, TensorView values, MatrixView output_projection, Norm norm,
                         int64_t chain) {
  constexpr int64_t kTerms = 16;
  const double factor = norm == Norm::l1 ? std::sqrt(static_cast<double>(shape.model_dim)) : 1;
  Matrix total(shape.query_heads, values.rows);
  for (int64_t last = kTerms; last < shape.head_dim; last += kTerms) {
    const int64_t first = last / (chain * kTerms) * (chain * kTerms);
    if (last == first) continue;  // the next chain begins with zero
    std::vector<RowProduct> products;
    for (int64_t h = 0; h < shape.query_heads; ++h) {
      products.push_back({values.slice(shape.kv_head_of(h)).middle_cols(first, last - first),
                          output_projection.middle_rows(h * shape.head_dim + first, last - first)});
    }
    const Matrix norms = row_norms(products, Norm::l2);
    for (int64_t h = 0; h < total.rows(); ++h) {
      for (int64_t j = 0; j < total.cols(); ++j)
        total(h, j) += factor * (1 + 2 * kGramNormError) * norms(h, j);
    }
  }
  return total;
}

// What products of a value and W^O add to a norm's error: error_bounds.md, "Projected value norms".
class ProjectionErrors {
 public:
  ProjectionErrors(const LayerShape& shape, TensorView values, MatrixView output_projection, Norm norm,
                   const Arithmetic& arithmetic)
      : chain_(static_cast<double>(arithmetic.tensor_chain)),
        input_(arithmetic.input * (2 + arithmetic.input)) {
    Arithmetic outside = arithmetic;  // of chains
    if (arithmetic.tensor_chain > 1 && arithmetic.tensor_sums > 0) {
      running_ = running_sum_norms(shape, values, output_projection, norm, arithmetic.tensor_chain);
      tensor_ = arithmetic.tensor_sums * (1 + arithmetic.tensor_share());
      outside.tensor_sums = 0;
    }
    share_ = product_error(shape.head_dim, 0, outside);
  }

  // size   || |v| |W| ||, or in L2 an upper bound of it
  // floor  what inputs below the normal range of their storage add
  double of(int64_t head, int64_t token, double size, double floor) const {
    const double outside = share_ * size + floor;
    if (tensor_ == 0) return outside;
    return outside +
           (1 + share_) * tensor_ * (size + running_(head, token) + chain_ * (input_ * size + floor));
  }

 private:
  Matrix running_;
  double tensor_ = 0, share_ = 0;
  double chain_, input_;
};

// The error of x y for factors with the errors dx and dy, without rounding of the product.
double product_spread(double x, double dx, double y, double dy) {
  return dx * std::abs(y) + std::abs(x) * dy + dx * dy;
}

}  // namespace

Arithmetic single_precision() { return {.unit = 0x1p-24, .smallest = 0x1p-126, .exponential = 0x1p-22}; }

Arithmetic arithmetic_of(const KernelArithmetic& kernel) {
  Arithmetic arithmetic = kernel.precision == Precision::fp64 ? double_precision() : single_precision();
  arithmetic.accumulation_depth = kernel.accumulation_depth;
  arithmetic.product_depth = kernel.product_depth;
  arithmetic.length_depth = kernel.length_depth;
  arithmetic.tensor_sums = kernel.tensor_sums;
  arithmetic.tensor_chain = kernel.tensor_chain;
  arithmetic.tensor_weighted_sums = kernel.tensor_weighted_sums;
  arithmetic.weights_floor = kernel.weights_floor;
  arithmetic.tensor_lengths = kernel.tensor_lengths;
  arithmetic.lengths_floor = kernel.lengths_floor;
  arithmetic.gram_factor = kernel.gram_factor;
  arithmetic.rescalings = kernel.rescalings;
  return arithmetic;
}

Arithmetic tensor_core_precision() { return {.unit = 0x1p-22, .smallest = 0x1p-126, .exponential = 0x1p-22}; }

Arithmetic double_precision() { return {.unit = 0x1p-53, .smallest = 0x1p-1022, .exponential = 0x1p-51}; }

Matrix logit_errors(MatrixView queries, MatrixView keys, double scale, const Arithmetic& arithmetic) {
  const Matrix sizes = attention_logits(absolute(queries), absolute(keys), std::abs(scale));
  const bool chained = arithmetic.tensor_chain > 1 && arithmetic.tensor_sums > 0;
  Arithmetic outside = arithmetic;  // of chains
  if (chained) outside.tensor_sums = 0;
  const double share = logit_share(queries.cols, outside);
  const double lost = (std::abs(scale) + 1) * 2 * static_cast<double>(queries.cols + 1) * arithmetic.smallest;
  Matrix errors = sizes;
  for (int64_t i = 0; i < errors.rows(); ++i) {
    for (double& error : errors.row(i)) error = (error > 0 ? error * share : 0) + lost;
  }
  if (arithmetic.input_floor > 0) add_input_floor(queries, keys, scale, arithmetic, errors);
  if (chained) add_chain_errors(queries, keys, scale, share, sizes, arithmetic, errors);
  return errors;
}

AttentionErrors attention_errors(MatrixView queries, MatrixView keys, MatrixView values, double scale,
                                 VectorView votes, const Arithmetic& arithmetic, const CacheErrors& cache) {
  require_equal("rows of keys", keys.rows, "rows of values", values.rows);
  const int64_t tokens = keys.rows;
  const Matrix zeros(queries.rows, values.cols);
  const std::vector<double> none(queries.rows);
  AttentionErrors result{zeros, zeros, zeros, none, {}, {}, {}, {}, none, none, none};
  if (arithmetic.partials > 0) result.parts = zeros;
  result.exact_inputs =
      arithmetic.input == 0 && arithmetic.input_floor == 0 && is_zero(cache.keys) && is_zero(cache.values);
  if (tokens == 0) return result;
  Matrix logits = attention_logits(queries, keys, scale);
  Matrix errors = logit_errors(queries, keys, scale, arithmetic);
  add_key_errors(queries, cache.keys, scale, logit_share(queries.cols, arithmetic), arithmetic, errors);
  result.logits = errors;
  add_votes(votes, arithmetic, logits, errors);
  result.weights = Matrix(queries.rows, tokens);
  for (int64_t i = 0; i < queries.rows; ++i) {
    const QuerySoftmax softmax = query_softmax(logits.row(i), errors.row(i), cache.in_order, arithmetic);
    const SharedRounding shared = shared_rounding(softmax, arithmetic);
    result.log_sum_exp[i] = log_sum_exp_error(softmax.errors, tokens, shared.sum, arithmetic);
    result.divisor[i] = divisor_error(shared, softmax.errors);
    const std::vector<double> weights =
        weight_errors(softmax, shared, result.log_sum_exp[i], arithmetic, result.weights.row(i));
    const OutputErrors output(softmax, shared, weights, values, arithmetic);
    result.rescalings[i] = softmax.rescalings;
    if (arithmetic.partials > 0) std::ranges::copy(output.parts, result.parts.row(i).begin());
    for (int64_t c = 0; c < values.cols; ++c) {
      result.own(i, c) = output.own[c];
      result.lost(i, c) = output.lost[c];
      result.output(i, c) = output.by_weights[c] + output.own[c] + output.lost[c];
    }
    result.weights_floor[i] = output.weights_floor;
    add_value_errors(softmax, weights, shared, cache.values, arithmetic, i, result);
  }
  result.exponents = std::move(errors);
  for (int64_t i = 0; i < queries.rows; ++i) {
    const double sum = log_sum_exp(logits.row(i));
    for (double& logit : logits.row(i)) logit -= sum;
  }
  result.log_weights = std::move(logits);
  return result;
}

double stated_log_sum_exp_error(double error, double log_sum_exp, int64_t tokens,
                                const Arithmetic& arithmetic) {
  const double unit = arithmetic.unit + 0x1p-53;
  const double rounded =
      std::log1p(arithmetic.weights) + static_cast<double>(tokens) * arithmetic.weights_floor;
  return (error + 2 * rounded) * (1 + 3 * unit) + 3 * unit * std::abs(log_sum_exp);
}

Matrix window_log_sum_exp_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic) {
  require_window(layer, window);
  Matrix errors(layer.shape.query_heads, window);
  parallel_for(layer.shape.query_heads, [&](int64_t h) {
    visit_window_softmax(layer, h, window, arithmetic,
                         [&](int64_t i, VectorView logits, VectorView, const SoftmaxErrors& softmax) {
                           errors(h, i) = log_sum_exp_error(softmax, std::ssize(logits), arithmetic);
                         });
  });
  return errors;
}

Matrix window_attention_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic) {
  require_window(layer, window);
  Matrix errors(layer.shape.query_heads, layer.prompt_tokens());
  const double averaging = gamma(static_cast<double>(window) + 2, arithmetic);
  const auto queries = static_cast<double>(window);
  const auto add_errors = [&](std::span<double> sums, VectorView logits, VectorView exponents,
                              const SoftmaxErrors& softmax) {
    const auto tokens = std::ssize(logits);
    // This holds for weights computed from the log-sum-exp; those divided by their sum have smaller errors.
    const double shared = log_sum_exp_error(softmax, tokens, arithmetic);
    for (size_t j = 0; j < logits.size(); ++j) {
      const double weight = weight_of(logits[j], softmax);
      const double error = score_weight_error(weight, growth(exponents[j] + shared), tokens, arithmetic);
      sums[j] += (error + averaging * (weight + error)) / queries;
    }
  };
  parallel_for(layer.shape.query_heads, [&](int64_t h) {
    visit_window_softmax(layer, h, window, arithmetic,
                         [&](int64_t, VectorView logits, VectorView exponents, const SoftmaxErrors& softmax) {
                           add_errors(errors.row(h), logits, exponents, softmax);
                         });
  });
  return errors;
}

Matrix max_pool_errors(MatrixView errors, int64_t width) { return max_pool(errors, width); }

Matrix group_mean_errors(MatrixView scores, MatrixView errors, int64_t group_size,
                         const Arithmetic& arithmetic) {
  Matrix mean = group_mean(errors, group_size);
  const Matrix size = group_mean(absolute(scores), group_size);
  const double rounding = gamma(static_cast<double>(group_size) + 1, arithmetic);
  for (int64_t g = 0; g < mean.rows(); ++g) {
    for (int64_t j = 0; j < mean.cols(); ++j) {
      mean(g, j) += rounding * (size(g, j) + mean(g, j)) + 2 * arithmetic.smallest;
    }
  }
  return mean;
}

Matrix projected_value_norm_errors(const LayerShape& shape, TensorView values, MatrixView output_projection,
                                   Norm norm, MatrixView norms, const Arithmetic& arithmetic,
                                   TensorView value_errors) {
  require_equal("rows of norms", norms.rows, "query_heads", shape.query_heads);
  require_equal("columns of norms", norms.cols, "rows of values", values.rows);
  Matrix errors(norms.rows, norms.cols);
  const ProjectionErrors projections(shape, values, output_projection, norm, arithmetic);
  const bool by_factor = norm == Norm::l2 && arithmetic.gram_factor;
  const bool exact = arithmetic.input == 0 && arithmetic.input_floor == 0 && value_errors.rows == 0;
  const int64_t widest = by_factor ? std::max(shape.model_dim, shape.head_dim) : shape.model_dim;
  const double adding =
      gamma(accumulation_depth(arithmetic, widest) + 3, arithmetic) + reference_error(shape.model_dim);
  const auto columns = static_cast<double>(widest), inner = static_cast<double>(shape.head_dim);
  const double lost = norm == Norm::l1
                          ? columns * 2 * (inner + 1) * arithmetic.smallest
                          : std::sqrt(columns * arithmetic.smallest);  // a square too small to count
  // The error of || v W^O || from absolute errors of stored values and of W^O.
  const double norm_of_ones = norm == Norm::l1 ? columns : std::sqrt(columns);
  const auto floor_error = [&](VectorView value, double projection_size) {
    const double floor = arithmetic.input_floor;
    const double value_size = absolute_sum(value) + inner * floor;
    return 2 * floor * (projection_size + norm_of_ones * value_size);
  };
  // From || v L || to || v W ||, of which the latter is no less than `least`: what the factor is off by, and
  // what its numbers and their products lose below the normal range.
  const auto factor_error = [&](VectorView value, double least, double size) {
    const double square = gram_factor_error(shape.head_dim, shape.model_dim) * size * size;
    const double below = std::sqrt(inner) * (2 * absolute_sum(value) + 8 * inner) * arithmetic.smallest;
    return below + (least > 0 ? std::min(std::sqrt(square), square / least) : std::sqrt(square));
  };
  parallel_for(shape.query_heads, [&](int64_t h) {
    const MatrixView own = output_projection.middle_rows(h * shape.head_dim, shape.head_dim);
    std::vector<double> row_norms;
    for (int64_t c = 0; c < shape.head_dim; ++c) row_norms.push_back(row_norm(own.row(c), norm));
    const MatrixView rows = values.slice(shape.kv_head_of(h));
    const double projection_size = absolute_sum(row_norms);
    std::vector<double> sizes;  // || |v| |L| ||
    if (by_factor && exact) sizes = GramFactor(own).sizes(rows);
    for (int64_t j = 0; j < rows.rows; ++j) {
      const VectorView value = rows.row(j);
      const VectorView moved =
          value_errors.rows > 0 ? value_errors.slice(shape.kv_head_of(h)).row(j) : VectorView();
      double size = 0;   // || |v| |W| ||, or in L2 an upper bound of it
      double shift = 0;  // the same of the value's errors
      for (size_t c = 0; c < row_norms.size(); ++c) size += std::abs(value[c]) * row_norms[c];
      for (size_t c = 0; c < moved.size(); ++c) shift += moved[c] * row_norms[c];
      const double terms = (sizes.empty() ? size : sizes[static_cast<size_t>(j)]) + shift;
      const double products = projections.of(h, j, terms, floor_error(value, projection_size) + shift);
      const double by_gram = norm == Norm::l2 ? kGramNormError * norms(h, j) : 0;
      const double least = norms(h, j) - by_gram - (exact ? 0 : products);
      const double other =
          by_gram + products + (by_factor ? factor_error(value, least, size + shift + products) : 0);
      errors(h, j) = other + adding * (norms(h, j) + other) + lost;
    }
  });
  return errors;
}

std::vector<double> stage_two_score_errors(MatrixView head_scores, MatrixView head_errors, MatrixView norms,
                                           MatrixView norm_errors, double epsilon, GqaProduct gqa,
                                           const Arithmetic& arithmetic) {
  require_equal("rows of head_scores", head_scores.rows, "rows of norms", norms.rows);
  require_equal("columns of head_scores", head_scores.cols, "columns of norms", norms.cols);
  const auto heads = static_cast<double>(head_scores.rows);
  const double rounding = gamma(2 * heads + 6, arithmetic);
  std::vector<double> errors(norms.cols);
  for (int64_t j = 0; j < norms.cols; ++j) {
    double spread = 0, size = 0;
    double score = 0, score_size = 0, score_error = 0, norm = 0, norm_error = 0;
    for (int64_t h = 0; h < norms.rows; ++h) {
      const double a = head_scores(h, j) + epsilon, da = head_errors(h, j);
      const double n = norms(h, j), dn = norm_errors(h, j);
      spread += product_spread(a, da, n, dn) / heads;
      size += std::abs(a) * n / heads;
      score += a / heads;
      score_size += (std::abs(head_scores(h, j)) + std::abs(epsilon)) / heads;
      score_error += da / heads;
      norm += n / heads;
      norm_error += dn / heads;
    }
    if (gqa == GqaProduct::product_of_means) {
      spread = product_spread(score, score_error, norm, norm_error);
      size = score_size * norm;
    }
    errors[j] = spread + rounding * (size + spread) + 4 * heads * arithmetic.smallest;
  }
  return errors;
}

}  // namespace kvbound::reference
