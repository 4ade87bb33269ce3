#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include <kvbound/reference/numerics/weighted_columns.hpp>

#include "functionals.hpp"
#include "long_sums.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

double squared(double x) { return x * x; }

// The rounding of one scalar operation, or of an addition of tensor cores as a share of
// its block's 16 together.
double scalar_unit(const Arithmetic& arithmetic) {
  return std::min(unit(arithmetic), std::max(unit(arithmetic) / 4, 0x1p-24));
}

// The distance of numbers of a type.
//
// unit   its unit roundoff; floor: half of its smallest subnormal number
double spacing(double number, double unit, double floor) {
  return std::max(std::ldexp(2 * unit, std::ilogb(number)), 2 * floor);
}

// A number's magnitude in spacings.
double position(double number, double unit, double floor) {
  return number == 0 || unit == 0 ? 0 : std::abs(number) / spacing(number, unit, floor);
}

}  // namespace

double OutputFunctionals::Terms::largest() const { return range() + std::sqrt(squares); }

double OutputFunctionals::Terms::truncated() const {
  return std::max(std::abs(aligned), std::abs(signs * sum - aligned));
}

void OutputFunctionals::Terms::add(double term) {
  sum += term;
  const double sign = term > 0 ? 1 : term < 0 ? -1 : 0;
  signs += sign;
  aligned += sign * sum;
  squares += term * term;
  low = std::min(low, sum);
  high = std::max(high, sum);
}

namespace {

// e^{2 pi i k / kTurns}: a phase need not be known better than that.
constexpr size_t kTurns = 1024;
const std::array<std::complex<double>, kTurns>& turns() {
  static const auto all = [] {
    std::array<std::complex<double>, kTurns> result;
    for (size_t k = 0; k < kTurns; ++k) {
      result[k] = std::polar(1.0, 2 * std::numbers::pi * static_cast<double>(k) / kTurns);
    }
    return result;
  }();
  return all;
}

}  // namespace

void AlikeRoundings::add(double amount, double position) {
  const double beyond = position - std::nearbyint(position);
  expected_ -= 2 * beyond * amount;
  const auto turn = static_cast<size_t>(std::lrint(beyond * kTurns) + static_cast<int64_t>(kTurns));
  const auto& all = turns();
  for (size_t k = 0; k < by_phase_.size(); ++k) by_phase_[k] += amount * all[(k + 1) * turn % kTurns];
}

void AlikeRoundings::add(const AlikeRoundings& other) {
  expected_ += other.expected_;
  for (size_t i = 0; i < by_phase_.size(); ++i) by_phase_[i] += other.by_phase_[i];
}

double AlikeRoundings::size() const {
  double squares = 0;
  for (const std::complex<double>& sum : by_phase_) squares += std::norm(sum);
  return std::max(std::abs(expected_), std::sqrt(squares / static_cast<double>(by_phase_.size())));
}

void ChanceError::add(const ChanceError& other) {
  variance += other.variance;
  bias += other.bias;
  for (size_t i = 0; i < weights.size(); ++i) weights[i].add(other.weights[i]);
  parts.add(other.parts);
  stored.add(other.stored);
  by_weights += other.by_weights;
  by_parts += other.by_parts;
  by_products += other.by_products;
}

double ChanceError::alike() const {
  double of_weights = 0;
  for (const AlikeRoundings& roundings : weights) of_weights = std::max(of_weights, roundings.size());
  return std::sqrt(squared(of_weights) + squared(parts.size()) + squared(stored.size()));
}

// Sums over the tokens of what their values are along one direction: x_j = <w, v_j>.
class OutputFunctionals::Along {
  // What the rounding of weights before they multiply values takes from a sum of
  // weights times one number each.
  struct RoundedWeights {
    double squares = 0, unit_squares = 0;
    AlikeRoundings alike = {};

    // rounded  how far the weight may be rounded
    void add(double weight, double rounded, double along, double position) {
      squares += squared(rounded * along);
      unit_squares += squared(weight * along);
      if (rounded > 0) alike.add(rounded * along, position);
    }
    double variance() const { return std::max(squares, squared(alike.size())); }
  };

 public:
  Along(const OutputFunctionals& of, VectorView direction)
      : of_(of), arithmetic_(of.arithmetic_), largest_(*std::ranges::max_element(of.weights_)) {
    const auto head_dim = static_cast<double>(direction.size());
    const bool is_chained = arithmetic_.tensor_sums > 0;
    const double roundings = 6 + (arithmetic_.product_depth < 0
                                      ? head_dim
                                      : std::min(head_dim, static_cast<double>(arithmetic_.product_depth)));
    logit_share_ = is_chained ? 1 : 1 / std::sqrt(roundings);
    size_share_ = 1 / product_error(std::ssize(direction), 4, arithmetic_);
    for (size_t c = 0; c < direction.size(); ++c) value_ += direction[c] * of.output_[c];
    const std::vector<double> along = row_products(of.values_, direction);
    for (int64_t j = 0; j < of.values_.rows; ++j) add(j, along[j]);
  }

  // What errors of single weights and logits add.
  void add_tokens(ChanceError& error) const {
    error.variance += logits_;
    error.weights = {centred_weights_.alike, weights_.alike, divided_weights_.alike};
    error.variance +=
        std::max({centred_weights_.variance(), weights_.variance(), divided_weights_.variance()});
    error.by_weights += std::max(centred_weights_.unit_squares, weights_.unit_squares);
    error.by_products += products_;
    error.bias += second_ + of_.growth_ * spread_ / (1 - of_.growth_);
  }

  // What errors add that many tokens share: of a maximum, of a part's or all weights' sum, of rescalings.
  //
  // common  of the exponentials of one part of the cache
  void add_shared(double common, double rescalings, double depth, double parts, ChanceError& error) const {
    const double unit = scalar_unit(arithmetic_), rescaling = arithmetic_.exponential + 2 * unit;
    const double run = centred_.largest();
    error.variance += (parts * squared(common) + rescalings * squared(rescaling)) * squared(run) +
                      (squared(common) + depth * squared(unit)) * squared(value_);
    // Of a sum that truncation makes smaller, and of the weights' sum, which makes it larger.
    const double of_weights =
        std::abs(value_) * std::max(weight_walk_, static_cast<double>(of_.values_.rows) - weight_walk_);
    error.bias += arithmetic_.unit / (2 * kBlock) * std::max({walk_, back_, of_weights});
  }

 private:
  void add(int64_t j, double x) {
    const double weight = of_.weights_[j], centred = x - value_;
    const double rounded = arithmetic_.weights * weight + arithmetic_.weights_floor,
                 logit = of_.errors_.logits(of_.query_, j);
    const auto place = [&](double of) {
      return position(of, arithmetic_.weights, arithmetic_.weights_floor);
    };
    centred_weights_.add(weight, rounded, centred, place(weight / largest_));
    weights_.add(weight, rounded, x, place(weight / largest_));
    divided_weights_.add(weight, rounded, x, place(weight));
    const double own = logit_share_ * logit + arithmetic_.exponential + arithmetic_.unit;
    logits_ += squared(own * weight) * std::max(squared(centred), squared(x) + squared(value_));
    products_ += squared(2 * size_share_ * logit * weight * centred);
    const double growing = of_.growing_[j], moved = growing * std::abs(centred);
    spread_ += moved;
    second_ += weight > 0 ? growing / weight * moved : 0;
    centred_.add(weight * centred);
    sum_ += weight * x;
    walk_ += std::abs(sum_);
    back_ += std::abs(value_ - sum_);
    weight_sum_ += weight;
    weight_walk_ += weight_sum_;
  }

  const OutputFunctionals& of_;
  const Arithmetic& arithmetic_;
  double largest_, logit_share_, size_share_;
  double value_ = 0;  // X
  RoundedWeights centred_weights_, weights_,
      divided_weights_;               // of x_j - X, of x_j, and of x_j with A_j itself rounded
  double logits_ = 0, products_ = 0;  // squares of what logits are off by
  double spread_ = 0, second_ = 0;    // of the worst case
  Terms centred_;                     // A_j (x_j - X)
  double sum_ = 0, walk_ = 0,
         back_ = 0;  // the first A_j x_j, and the sizes of all these sums, from either end
  double weight_sum_ = 0, weight_walk_ = 0;  // the same of A_j
};

// What each component's own roundings add: of the additions, and of the outputs of parts.
void OutputFunctionals::add_components(VectorView direction, double depth, double parts,
                                       ChanceError& error) const {
  const auto tokens = static_cast<double>(values_.rows);
  const double additions = (depth + parts) * squared(scalar_unit(arithmetic_)),
               products = kBlock * squared(arithmetic_.tensor_weighted_sums) + squared(arithmetic_.unit);
  for (size_t c = 0; c < direction.size(); ++c) {
    const Terms& terms = terms_[c];
    const double square = squared(direction[c]);
    error.variance += square * (additions * squared(terms.largest()) + products * terms.squares);
    error.by_parts += square * (squared(terms.range()) + terms.squares);
    error.by_products += square * terms.squares;
    // The reference's own sums, and what is lost below the normal range.
    error.bias +=
        std::abs(direction[c]) * (2 * reference_error(values_.rows) * std::sqrt(tokens * terms.squares) +
                                  4 * tokens * arithmetic_.smallest);
    error.bias += std::abs(direction[c]) * arithmetic_.unit / 4 * terms.truncated();
    if (arithmetic_.partials == 0) continue;
    error.variance += square * (squared(arithmetic_.partials) * terms.range() *
                                    errors_.parts(query_, static_cast<int64_t>(c)) +
                                parts * squared(arithmetic_.partials_floor));
  }
  error.parts = rounded_parts(direction);
}

// One of the equal parts of the cache.
void OutputFunctionals::add_part(int64_t first, int64_t last) {
  const VectorView weights = VectorView(weights_).subspan(first, last - first);
  const double weight = std::reduce(weights.begin(), weights.end());
  if (weight == 0) return;
  std::vector<double> output = weighted_columns(values_.middle_rows(first, last - first), weights).sums;
  for (double& number : output) number /= weight;
  part_weights_.push_back(weight);
  parts_.push_back(std::move(output));
}

AlikeRoundings OutputFunctionals::rounded_parts(VectorView direction) const {
  AlikeRoundings roundings;
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (size_t c = 0; c < direction.size(); ++c) {
      const double number = parts_[part][c];
      roundings.add(direction[c] * arithmetic_.partials * part_weights_[part] * number,
                    position(number, arithmetic_.partials, arithmetic_.partials_floor));
    }
  }
  return roundings;
}

std::vector<double> OutputFunctionals::merged() const {
  if (parts_.empty()) return output_;
  std::vector<double> merged(output_.size());
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (size_t c = 0; c < merged.size(); ++c) {
      const double number = parts_[part][c];
      if (number == 0) continue;
      const double step = spacing(number, arithmetic_.partials, arithmetic_.partials_floor);
      merged[c] += part_weights_[part] * std::nearbyint(number / step) * step;
    }
  }
  return merged;
}

std::optional<ChanceError> OutputFunctionals::chance(VectorView direction) const {
  if (!errors_.exact_inputs || !(growth_ < 0.5)) return std::nullopt;
  const int64_t tokens = values_.rows;
  const double rescalings = errors_.rescalings[query_],
               parts = static_cast<double>(most_parts(arithmetic_, tokens)),
               depth = single_depth(arithmetic_, tokens) + rescalings + 3;
  double common = 0;
  for (int64_t j = 0; j < tokens; ++j) {
    common = std::max(common, errors_.exponents(query_, j) - errors_.logits(query_, j));
  }
  common -= rescalings * (exponential(arithmetic_) + 2 * unit(arithmetic_)) + exponential(arithmetic_);
  common = std::max(common, 0.0) * scalar_unit(arithmetic_) / unit(arithmetic_) + exponential(arithmetic_);
  ChanceError error;
  const Along along(*this, direction);
  along.add_tokens(error);
  along.add_shared(common, rescalings, depth, parts, error);
  add_components(direction, depth, parts, error);
  const std::vector<double> scale = scale_direction();
  const double turned = std::inner_product(direction.begin(), direction.end(), scale.begin(), 0.0);
  error.bias += (static_cast<double>(direction.size()) / kBlock + 5) * unit(arithmetic_) * std::abs(turned);
  return error;
}

}  // namespace kvbound::reference
