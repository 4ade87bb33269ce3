#include "output_errors.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/infinity.hpp>

#include "long_sums.hpp"

namespace kvbound::reference::rounding {
namespace {

// Sums over the tokens, component by component.
struct ValueSums {
  explicit ValueSums(int64_t head_dim)
      : output(head_dim),
        sizes(head_dim),
        absolute(head_dim),
        by_each(head_dim),
        moved(head_dim),
        spread(head_dim),
        least(head_dim, kInfinity),
        most(head_dim, -kInfinity),
        low(head_dim),
        high(head_dim) {}

  // error: of the weight; growing: the weight times e^T - 1
  void add(VectorView value, double weight, double error, double growing) {
    for (size_t c = 0; c < output.size(); ++c) {
      const double size = std::abs(value[c]);
      output[c] += weight * value[c];
      sizes[c] += weight * size;
      absolute[c] += size;
      by_each[c] += error * size;
      moved[c] += growing * size;
      least[c] = std::min(least[c], value[c]);
      most[c] = std::max(most[c], value[c]);
      low[c] = std::min(low[c], output[c]);
      high[c] = std::max(high[c], output[c]);
    }
  }
  void add_spread(VectorView value, double growing) {
    for (size_t c = 0; c < output.size(); ++c) spread[c] += growing * std::abs(value[c] - output[c]);
  }
  double largest(size_t c) const { return std::max(std::abs(most[c]), std::abs(least[c])); }

  std::vector<double> output;       // sum_j A_j v_j
  std::vector<double> sizes;        // sum_j A_j |v_j|
  std::vector<double> absolute;     // sum_j |v_j|
  std::vector<double> by_each;      // sum_j (error of A_j) |v_j|
  std::vector<double> moved;        // sum_j A_j (e^T_j - 1) |v_j|
  std::vector<double> spread;       // sum_j A_j (e^T_j - 1) |v_j - o|
  std::vector<double> least, most;  // of the values
  std::vector<double> low,
      high;  // the least and the largest of the sums of the first few terms, none included
};

// The exact weights, in the order of the tokens' positions.
std::vector<double> weights_of(const QuerySoftmax& softmax) {
  std::vector<double> weights;
  for (size_t k = 0; k < softmax.logits.size(); ++k) {
    weights.push_back(weight_of(softmax.logits[softmax.token(k)], softmax.errors));
  }
  return weights;
}

// What outputs of parts of the cache add that are rounded before they are merged, [head_dim].
std::vector<double> part_errors(const QuerySoftmax& softmax, VectorView weights, MatrixView values,
                                const ValueSums& sums, const Arithmetic& arithmetic) {
  Matrix terms = Matrix::for_overwrite(values.rows, values.cols);
  for (int64_t k = 0; k < values.rows; ++k) {
    const VectorView value = values.row(softmax.token(k));
    for (int64_t c = 0; c < values.cols; ++c) terms(k, c) = weights[k] * value[c];
  }
  std::vector<double> errors = largest_runs(terms, most_parts(arithmetic, values.rows));
  for (size_t c = 0; c < errors.size(); ++c) {
    const double off = sums.moved[c] + growth(2 * arithmetic.weights) * sums.sizes[c];
    errors[c] = arithmetic.partials * (errors[c] + off) + arithmetic.partials_floor;
  }
  return errors;
}

}  // namespace

double rescalings_of(VectorView logits, const Arithmetic& arithmetic) {
  const double blocks = rescalings(arithmetic, std::ssize(logits));
  if (!is_long(arithmetic, std::ssize(logits))) return blocks;
  return std::min(blocks, arithmetic.tile > 0 ? most_rescalings_in_order(logits) : most_rescalings(logits));
}

SharedRounding shared_rounding(const QuerySoftmax& softmax, const Arithmetic& arithmetic) {
  const auto tokens = std::ssize(softmax.logits);
  if (!is_long(arithmetic, tokens)) {
    const double sum = sum_error(tokens, accumulation_depth(arithmetic, tokens), arithmetic);
    return {sum, sum + gamma(softmax.rescalings, arithmetic), 2 * arithmetic.weights};
  }
  const double sum = LongSums(weights_of(softmax), softmax.rescalings, arithmetic).of_weights() +
                     2 * static_cast<double>(tokens) * arithmetic.smallest;
  return {sum, sum, 2 * arithmetic.weights};
}

OutputErrors::OutputErrors(const QuerySoftmax& softmax, const SharedRounding& shared,
                           VectorView weight_errors, MatrixView values, const Arithmetic& arithmetic)
    : by_weights(values.cols), own(values.cols) {
  const int64_t tokens = values.rows;
  const std::vector<double> weights = weights_of(softmax);
  ValueSums sums(values.cols);
  for (int64_t k = 0; k < tokens; ++k) {
    const int64_t j = softmax.token(k);
    sums.add(values.row(j), weights[k], weight_errors[j], weights[k] * growth(softmax.exponents[j]));
  }
  const double total = softmax.errors.growth, widest = growth(shared.divisor + shared.weights);
  const bool is_centred = total < 0.5;
  for (int64_t k = 0; is_centred && k < tokens; ++k) {
    const int64_t j = softmax.token(k);
    sums.add_spread(values.row(j), weights[k] * growth(softmax.exponents[j]));
  }
  const double divisor = shared.divisor + (1 + shared.divisor) * 2 * total / (1 - total);
  std::vector<double> sizes(own.size()), ranges(own.size()), lost(own.size());
  for (size_t c = 0; c < own.size(); ++c) {
    // For any weights, both outputs are means of the values, up to the rounding of sums.
    by_weights[c] = std::min(sums.by_each[c], sums.most[c] - sums.least[c] + widest * sums.largest(c));
    if (is_centred) {
      const double moved = sums.spread[c] / (1 - total),
                   rounded = growth(shared.weights) * (sums.sizes[c] + sums.moved[c]) / (1 - total);
      by_weights[c] = std::min(
          by_weights[c], moved + divisor * (std::abs(sums.output[c]) + moved) + (1 + divisor) * rounded);
    }
    sizes[c] = std::min(sums.sizes[c] + sums.by_each[c], (1 + widest) * sums.largest(c));
    const double off = sums.moved[c] + growth(shared.weights) * sums.sizes[c];  // of a running sum
    ranges[c] = sums.high[c] - sums.low[c] + 2 * std::min(off, sizes[c]);
    lost[c] =
        lost_output(arithmetic.weights_floor * (1 + widest), tokens, sums.absolute[c], sums.largest(c)) +
        sums.absolute[c] * weight_error(0, 0, arithmetic) +
        2 * static_cast<double>(tokens) * arithmetic.smallest + 2 * arithmetic.input_floor;
  }
  if (is_long(arithmetic, tokens)) {
    own = LongSums(weights, softmax.rescalings, arithmetic).of_values(ranges, sizes);
    const double each = gamma(3, arithmetic) + arithmetic.tensor_weighted_sums + arithmetic.input;
    for (size_t c = 0; c < own.size(); ++c) own[c] += growth(each) * sizes[c];
  } else {
    for (size_t c = 0; c < own.size(); ++c) own[c] = growth(component_error(tokens, arithmetic)) * sizes[c];
  }
  if (arithmetic.partials > 0) {
    const std::vector<double> parts = part_errors(softmax, weights, values, sums, arithmetic);
    for (size_t c = 0; c < own.size(); ++c)
      own[c] += (1 + arithmetic.partials) * parts[c] + arithmetic.partials * own[c];
  }
  for (size_t c = 0; c < own.size(); ++c) own[c] += lost[c];
}

}  // namespace kvbound::reference::rounding
