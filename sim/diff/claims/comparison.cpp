#include "comparison.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/sim/measure/median.hpp>

namespace kvbound::sim {
namespace {

// Stands in for the bound of an element that has none.
constexpr double kNone = 1e200;
static_assert(kNone >= kUnboundedElement);

// The largest |number| among the finite ones, 0 if there are none.
double largest_of(VectorView numbers) {
  double largest = 0;
  for (const double number : numbers) {
    if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
  }
  return largest;
}

// |a - b|, of equal infinities 0; infinity if that is NaN.
double distance(double a, double b) {
  if (a == b) return 0;
  const double difference = std::abs(a - b);
  return std::isnan(difference) ? kInfinity : difference;
}

bool may_overflow(const Offender& element) {
  const double reach = std::abs(element.expected) + element.bound;
  return std::isinf(element.claimed) && std::signbit(element.claimed) == std::signbit(element.expected) &&
         reach >= overflow_threshold(element.storage);
}

bool is_inside(const Offender& element) {
  if (std::isnan(element.claimed) || std::isnan(element.expected)) return false;  // whatever the bound
  if (std::isinf(element.claimed) && element.claimed == element.expected) return true;
  return element.error <= element.bound || may_overflow(element);
}

void require_length(const std::string& what, size_t length, size_t expected) {
  if (length == expected) return;
  throw ShapeMismatch(what + " has " + std::to_string(length) + " elements, but " + std::to_string(expected) +
                      " are claimed");
}

}  // namespace

double Offender::share() const {
  const double ratio = error == 0 && bound >= 0 ? 0 : error / bound;
  return std::isnan(ratio) ? kInfinity : ratio;
}

double Offender::ulps() const { return error == 0 ? 0 : error / (2 * half_spacing(storage, expected)); }

std::span<const UndeclaredRounding> undeclared_roundings() {
  static constexpr UndeclaredRounding kRoundings[] = {
      {"weights of 16 bits (FP16)", 0x1p-11, true, false, false},
      {"weights of 16 bits (BF16)", 0x1p-8, true, false, false},
      {"partials of 16 bits (FP16)", 0x1p-11, false, true, false},
      {"partials of 16 bits (BF16)", 0x1p-8, false, true, false},
      {"products in TF32", 0x1p-11, true, false, true},
  };
  return kRoundings;
}

double ChanceTest::deviations() const {
  const double beyond = std::max(std::abs(value - 1) - bias, 0.0);
  return deviation > 0 ? beyond / deviation : beyond > 0 ? kInfinity : 0;
}

bool TensorAgreement::agrees() const {
  return outside == 0 && std::ranges::all_of(functionals, [](const FunctionalAgreement& functional) {
           return functional.outside == 0;
         });
}

bool TensorAgreement::is_judged_as_a_whole() const {
  return std::ranges::any_of(functionals,
                             [](const FunctionalAgreement& functional) { return functional.judged > 0; });
}

std::vector<int64_t> index_of(int64_t element, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return index;
}

double half_spacing(Dtype storage, double x) {
  const RealFormat format = *real_format(storage);
  const int exponent = x == 0 || !std::isfinite(x) ? format.least_exponent : std::ilogb(x);
  return std::ldexp(0.5, std::max(exponent, format.least_exponent) - format.fraction_bits);
}

double overflow_threshold(Dtype storage) {
  const RealFormat format = *real_format(storage);
  // The largest finite number, 2^emax (2 - 2^-fraction), plus half a spacing; for double
  // this overflows to infinity.
  const double largest = std::ldexp(2 - std::ldexp(1.0, -format.fraction_bits), format.largest_exponent);
  return largest + std::ldexp(0.5, format.largest_exponent - format.fraction_bits);
}

TensorAgreement compare(const std::string& tensor, const RealClaim& claim, VectorView expected,
                        VectorView bounds) {
  require_length("the reference's " + tensor, expected.size(), claim.numbers.size());
  require_length("the bound of " + tensor, bounds.size(), claim.numbers.size());
  TensorAgreement result;
  result.tensor = tensor;
  result.elements = std::ssize(claim.numbers);
  const double largest = largest_of(expected);
  bool zero = true, tells_from_zero = false;
  double largest_share = -1;
  std::vector<double> slacks;
  for (size_t i = 0; i < claim.numbers.size(); ++i) {
    Offender element{{}, claim.numbers[i], expected[i], distance(claim.numbers[i], expected[i]),
                     0,  claim.storage,    {}};
    element.bound = bounds[i] + half_spacing(claim.storage, claim.numbers[i]);
    const bool inside = is_inside(element);
    result.outside += !inside;
    if (!inside) result.outside_at.push_back(static_cast<int64_t>(i));
    // If all expected numbers are 0, any bound counts as informative here; the verdict
    // reports all_zero instead.
    const bool says_something = largest > 0 ? element.bound < largest : element.bound < kUnboundedElement;
    result.judged += !inside || says_something;
    result.decidable.push_back(element.bound < (expected[i] == 0 ? largest : std::abs(expected[i])));
    tells_from_zero = tells_from_zero || element.bound < std::abs(element.expected);
    zero = zero && expected[i] == 0;
    const double error = element.error;
    if (error > 0 && std::isfinite(error) && says_something) slacks.push_back(element.bound / error);
    // A claimed infinity that is right by overflow has no error to compare with the bound.
    const double share = inside && !std::isfinite(error) ? 0 : element.share();
    if (!(share > largest_share)) continue;
    largest_share = share;
    element.index = index_of(static_cast<int64_t>(i), claim.shape);
    result.worst = element;
  }
  if (largest > 0 && !tells_from_zero && result.outside == 0) result.judged = 0;
  result.all_zero = zero && result.outside == 0 && result.elements > 0;
  if (!slacks.empty()) result.median_slack = median(std::move(slacks));
  return result;
}

TensorAgreement compare_uncertain(const std::string& tensor, const RealClaim& claim, VectorView expected,
                                  VectorView bounds, const std::vector<bool>& certain) {
  require_length("the reference's " + tensor, expected.size(), claim.numbers.size());
  require_length("the bound of " + tensor, bounds.size(), claim.numbers.size());
  require_length("what is certain of " + tensor, certain.size(), claim.numbers.size());
  RealClaim decided = claim;
  std::vector<double> decided_bounds(bounds.begin(), bounds.end());
  std::vector<int64_t> undecided;
  for (size_t i = 0; i < decided.numbers.size(); ++i) {
    if (std::isnan(claim.numbers[i])) continue;  // no number, so never right
    const bool bounded = bounds[i] < kInfinity;
    const double most = bounds[i] + half_spacing(claim.storage, claim.numbers[i]);
    const bool inside = bounded && distance(claim.numbers[i], expected[i]) <= most;
    if (inside || (bounded && certain[i])) continue;
    undecided.push_back(static_cast<int64_t>(i));
    decided.numbers[i] = expected[i];
    decided_bounds[i] = kNone;
  }
  TensorAgreement result = compare(tensor, decided, expected, decided_bounds);
  result.undecided += std::ssize(undecided);
  result.undecided_at = std::move(undecided);
  return result;
}

TensorAgreement compare(const std::string& tensor, const std::vector<int64_t>& claim,
                        const std::vector<int64_t>& expected) {
  require_length("the reference's " + tensor, expected.size(), claim.size());
  TensorAgreement result;
  result.tensor = tensor;
  result.elements = result.judged = std::ssize(claim);
  for (size_t i = 0; i < claim.size(); ++i) {
    const bool wrong = claim[i] != expected[i];
    result.outside += wrong;
    if (wrong) result.outside_at.push_back(static_cast<int64_t>(i));
    if (i > 0 && !(wrong && result.outside == 1)) continue;
    const auto claimed = static_cast<double>(claim[i]), right = static_cast<double>(expected[i]);
    result.worst =
        Offender{{static_cast<int64_t>(i)}, claimed, right, std::abs(claimed - right), 0, Dtype::i64, {}};
  }
  return result;
}

}  // namespace kvbound::sim
