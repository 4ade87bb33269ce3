#include "output_errors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/weighted_columns.hpp>

#include "long_sums.hpp"

namespace kvbound::reference::rounding {
namespace {

// Sums over the tokens, component by component, [head_dim] each.
struct ValueSums {
  std::vector<double> output;       // sum_j A_j v_j
  std::vector<double> low, high;    // the least and the largest of the sums of the first few of these terms
  std::vector<double> sizes;        // sum_j A_j |v_j|
  std::vector<double> absolute;     // sum_j |v_j|
  std::vector<double> by_each;      // sum_j (error of A_j) |v_j|
  std::vector<double> moved;        // sum_j A_j (e^T_j - 1) |v_j|
  std::vector<double> spread;       // sum_j A_j (e^T_j - 1) |v_j - o|
  std::vector<double> least, most;  // of the values

  double largest(size_t c) const { return std::max(std::abs(most[c]), std::abs(least[c])); }
};

// A product in which 0 times infinity is 0: nothing is lost of a term that is exactly 0.
double times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

// A (e^T - 1); 0 for a weight that is 0, whatever its exponent.
double growing(double weight, double exponent) { return weight > 0 ? weight * growth(exponent) : 0; }

// The exact weights.
std::vector<double> weights_of(const QuerySoftmax& softmax) {
  std::vector<double> weights;
  for (size_t k = 0; k < softmax.logits.size(); ++k) {
    weights.push_back(weight_of(softmax.logits[k], softmax.errors));
  }
  return weights;
}

ValueSums sums_of(const QuerySoftmax& softmax, VectorView weights, VectorView weight_errors,
                  MatrixView values) {
  std::vector<double> growing_weights;
  for (size_t k = 0; k < weights.size(); ++k)
    growing_weights.push_back(growing(weights[k], softmax.exponents[k]));
  const std::vector<double> ones(weights.size(), 1.0), zeros(static_cast<size_t>(values.cols));
  WeightedColumns columns = weighted_columns(values, weights);
  ColumnRanges ranges = column_ranges(values);
  const std::array<VectorView, 4> factors{weights, ones, weight_errors, growing_weights};
  const Matrix sums = weighted_distances(values, zeros, factors),
               spread = weighted_distances(values, columns.sums, std::array<VectorView, 1>{growing_weights});
  const auto numbers = [](VectorView row) { return std::vector<double>(row.begin(), row.end()); };
  return {std::move(columns.sums), std::move(columns.low), std::move(columns.high), numbers(sums.row(0)),
          numbers(sums.row(1)),    numbers(sums.row(2)),   numbers(sums.row(3)),    numbers(spread.row(0)),
          std::move(ranges.least), std::move(ranges.most)};
}

// How far errors of weights reach.
struct Reach {
  Reach(const QuerySoftmax& softmax, const SharedRounding& shared)
      : growth(softmax.errors.growth),
        is_centred(growth < 0.5),
        divisor(divisor_error(shared, softmax.errors)),
        widest(rounding::growth(shared.divisor + shared.weights)) {}

  double growth;    // G
  bool is_centred;  // whether weights with errors are known to be nearly of sum 1
  double divisor;   // relative error of the number that divides all weights, if so
  double widest;    // computed weights are at most 1 + widest together
};

// The smallest of three bounds by the errors of the weights alone, [head_dim].
std::vector<double> errors_by_weights(const ValueSums& sums, const SharedRounding& shared,
                                      const Reach& reach) {
  std::vector<double> errors;
  for (size_t c = 0; c < sums.output.size(); ++c) {
    // For any weights, both outputs are means of the values, up to the rounding of sums.
    errors.push_back(
        std::min(sums.by_each[c], sums.most[c] - sums.least[c] + reach.widest * sums.largest(c)));
    if (!reach.is_centred) continue;
    const double spread = sums.spread[c] / (1 - reach.growth),
                 rounded = growth(shared.weights) * (sums.sizes[c] + sums.moved[c]) / (1 - reach.growth);
    errors.back() = std::min(errors.back(), spread + reach.divisor * (std::abs(sums.output[c]) + spread) +
                                                (1 + reach.divisor) * rounded);
  }
  return errors;
}

// The sums that additions round, component by component, as computed.
struct RunningSums {
  RunningSums(const ValueSums& sums, const SharedRounding& shared, const Reach& reach_, bool in_order_)
      : reach(reach_), in_order(in_order_) {
    for (size_t c = 0; c < sums.output.size(); ++c) {
      sizes.push_back(std::min(sums.sizes[c] + sums.by_each[c], (1 + reach.widest) * sums.largest(c)));
      moved.push_back(sums.moved[c] + growth(shared.weights) * (sums.sizes[c] + sums.moved[c]));
      ranges.push_back(2 * within(c, (sums.high[c] - sums.low[c]) / 2 + moved[c]));
    }
  }

  // A sum of some terms that would be so large, in the order of positions, but for the number that divides
  // all weights: never more than all absolute values.
  double within(size_t c, double sum) const {
    return reach.is_centred && in_order ? std::min(sizes[c], (1 + reach.divisor) * sum) : sizes[c];
  }

  const Reach& reach;
  bool in_order;
  std::vector<double> sizes;   // of the terms' absolute values
  std::vector<double> moved;   // what a sum of some of them may be off by through their own errors
  std::vector<double> ranges;  // of the sums of the first few of them
};

// The rounding errors of the output's additions, [head_dim].
std::vector<double> addition_errors(const QuerySoftmax& softmax, const RunningSums& running,
                                    const Arithmetic& arithmetic) {
  const auto tokens = std::ssize(softmax.logits);
  const bool many = is_long(arithmetic, tokens);
  std::vector<double> errors(running.sizes.size());
  if (many)
    errors = LongSums(tokens, softmax.rescalings, arithmetic).of_values(running.ranges, running.sizes);
  const double each = many ? gamma(3, arithmetic) + arithmetic.tensor_weighted_sums + arithmetic.input
                           : component_error(tokens, arithmetic);
  for (size_t c = 0; c < errors.size(); ++c) errors[c] += times(growth(each), running.sizes[c]);
  return errors;
}

// The largest sum, over the parts of the cache, of the absolute values of what they hold
// of the output, [head_dim].
std::vector<double> part_sizes(VectorView weights, MatrixView values, const Arithmetic& arithmetic) {
  Matrix terms = Matrix::for_overwrite(values.rows, values.cols);
  for (int64_t k = 0; k < values.rows; ++k) {
    const VectorView value = values.row(k);
    for (int64_t c = 0; c < values.cols; ++c) terms(k, c) = weights[k] * value[c];
  }
  return largest_runs(terms, most_parts(arithmetic, values.rows));
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
    const double sum = sum_error(tokens, arithmetic);
    return {sum, sum + gamma(softmax.rescalings, arithmetic), 2 * arithmetic.weights};
  }
  const double sum = LongSums(tokens, softmax.rescalings, arithmetic).of_weights() +
                     2 * static_cast<double>(tokens) * arithmetic.smallest;
  return {sum, sum, 2 * arithmetic.weights};
}

double divisor_error(const SharedRounding& shared, const SoftmaxErrors& softmax) {
  const double total = softmax.growth;
  return total < 0.5 ? shared.divisor + (1 + shared.divisor) * 2 * total / (1 - total) : kInfinity;
}

OutputErrors::OutputErrors(const QuerySoftmax& softmax, const SharedRounding& shared,
                           VectorView weight_errors, MatrixView values, const Arithmetic& arithmetic) {
  const std::vector<double> weights = weights_of(softmax);
  const ValueSums sums = sums_of(softmax, weights, weight_errors, values);
  const Reach reach(softmax, shared);
  by_weights = errors_by_weights(sums, shared, reach);
  const RunningSums running(sums, shared, reach, softmax.in_order);
  own = addition_errors(softmax, running, arithmetic);
  weights_floor = arithmetic.weights_floor * (1 + reach.widest);
  for (size_t c = 0; c < own.size(); ++c) {
    lost.push_back(lost_output(weights_floor, values.rows, sums.absolute[c],
                               std::min(sums.largest(c), std::abs(sums.output[c]) + by_weights[c])));
    own[c] += sums.absolute[c] * weight_error(0, 0, arithmetic) +
              2 * static_cast<double>(values.rows) * arithmetic.smallest + 2 * arithmetic.input_floor;
  }
  if (arithmetic.partials == 0) return;
  parts = part_sizes(weights, values, arithmetic);
  for (size_t c = 0; c < own.size(); ++c) {
    const double size = running.within(c, parts[c] + running.moved[c]);
    own[c] += arithmetic.partials * (size + own[c] + lost[c]) + arithmetic.partials_floor;
  }
}

}  // namespace kvbound::reference::rounding
