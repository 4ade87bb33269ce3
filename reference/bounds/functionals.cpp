#include "functionals.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/numerics/weighted_columns.hpp>

#include "long_sums.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

OutputFunctionals::OutputFunctionals(const AttentionErrors& errors, int64_t query, MatrixView values,
                                     VectorView votes, const Arithmetic& arithmetic)
    : errors_(errors), query_(query), values_(values), votes_(votes), arithmetic_(arithmetic) {
  const VectorView log_weights = errors.log_weights.row(query);
  // Of large logits the log-sum-exp is off by more than weights are: their sum divides.
  const double largest = *std::ranges::max_element(log_weights);
  double sum = 0;
  for (const double log_weight : log_weights) sum += std::exp(log_weight - largest);
  for (int64_t j = 0; j < values.rows; ++j) {
    const double weight = std::exp(log_weights[j] - largest) / sum;
    weights_.push_back(weight);
    growing_.push_back(weight > 0 ? weight * growth(errors.exponents(query, j) + growth(arithmetic_.weights))
                                  : 0);
    growth_ += growing_.back();
  }
  const WeightedColumns columns = weighted_columns(values, weights_);
  output_ = columns.sums;
  for (size_t c = 0; c < output_.size(); ++c) {
    terms_.push_back({columns.sums[c], columns.squares[c], columns.low[c], columns.high[c], columns.signs[c],
                      columns.aligned[c]});
  }
  const int64_t parts = arithmetic.partials > 0 ? most_parts(arithmetic, values.rows) : 0;
  for (int64_t part = 0; part < parts; ++part) {
    add_part(part * values.rows / parts, (part + 1) * values.rows / parts);
  }
}

std::vector<double> OutputFunctionals::scale_direction() const {
  // A logit but for a number that all share.
  const auto logit = [&](int64_t j) {
    return errors_.log_weights(query_, j) - (votes_.empty() ? 0 : std::log(votes_[j]));
  };
  double mean = 0;
  for (int64_t j = 0; j < values_.rows; ++j) mean += weights_[j] * logit(j);
  std::vector<double> shares;
  for (int64_t j = 0; j < values_.rows; ++j) shares.push_back(weights_[j] * (logit(j) - mean));
  return weighted_columns(values_, shares).sums;
}

double OutputFunctionals::error(VectorView direction) const {
  double by_elements = 0, own = 0, lost = 0, length = 0, value = 0, spread = 0, absolute = 0;
  for (size_t c = 0; c < direction.size(); ++c) {
    if (direction[c] == 0) continue;  // whose bound may be infinite
    by_elements += std::abs(direction[c]) * errors_.output(query_, static_cast<int64_t>(c));
    own += std::abs(direction[c]) * errors_.own(query_, static_cast<int64_t>(c));
    lost += std::abs(direction[c]) * errors_.lost(query_, static_cast<int64_t>(c));
    length += std::abs(direction[c]);
    value += direction[c] * output_[c];
  }
  if (!(growth_ < 0.5)) return by_elements;
  const std::vector<double> along = row_products(values_, direction);
  for (size_t j = 0; j < along.size(); ++j) {
    spread += growing_[j] * std::abs(along[j] - value);
    absolute += std::abs(along[j]);
  }
  const double moved = spread / (1 - growth_), divisor = errors_.divisor[query_];
  const double scaled = divisor + (1 + divisor) * growth(arithmetic_.weights);
  const double by_weights = moved + scaled * (std::abs(value) + moved);
  const double floor = errors_.weights_floor[query_];
  if (floor > 0) {
    const auto tokens = static_cast<double>(values_.rows);
    lost = std::min(lost, floor * (absolute + tokens * (std::abs(value) + by_weights) + length));
  }
  return std::min(by_weights + own + lost, by_elements);
}

}  // namespace kvbound::reference
