#include "output_change.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/numerics/instruction_set.hpp>

namespace kvbound::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A length's share of its terms below which they cancel: what is left of 53 bits is 40, less what head_dim additions cost.
constexpr double kCancelled = 0x1p-13;

double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

QueryAttention leave_out(VectorView logits, int64_t dominant, std::span<double> weights) {
  const auto at = static_cast<size_t>(dominant);
  const double logit = logits[at];
  std::ranges::copy(logits, weights.begin());
  weights[at] = -kInfinity;
  if (logits.size() == 1) {
    weights[at] = 0;
    return {logit, dominant, logit, 1, 0, -kInfinity};
  }
  const double largest = *std::ranges::max_element(weights);
  const double log_sum = std::log(softmax(weights, largest, weights));
  const double gap = logit - largest - log_sum;  // not of log-sum-exps, whose size would be lost from it
  return {logit - std::log(sigmoid(gap)), dominant, logit, sigmoid(gap), sigmoid(-gap), largest + log_sum};
}

// What is taken of entry and output, a v_j - b o, and how much that counts.
template <class Reals>
struct Coefficients {
  Reals w, a, b;
};

// What is left of e^z_j / sum e^z once j's key is 0, as shares of two numbers of which neither is large:
// (1 - A) entries + slot, where slot / entries = e^-LSE is what an entry of logit 0 weighs.
struct SlotShares {
  explicit SlotShares(double log_sum_exp)
      : entries(log_sum_exp < 0 ? std::exp(log_sum_exp) : 1),
        slot(log_sum_exp < 0 ? 1 : std::exp(-log_sum_exp)) {}

  double entries, slot;
};

template <Change change, class Reals>
[[gnu::always_inline]] inline void coefficients(const Reals& weight, const Reals& logit,
                                                const SlotShares& shares, Coefficients<Reals>& result) {
  const Reals one = Reals{} + 1.0;
  result = {weight, one, one};
  if constexpr (change == Change::value) result.b = Reals{};
  if constexpr (change == Change::key) result.w = weight * logit;
  if constexpr (change == Change::joint) {
    result.a = one + logit;
    result.b = logit;
  }
  if constexpr (change == Change::exact) result.w = weight / (one - weight);
  if constexpr (change == Change::slot) {  // (A / q)(v - o) + (r / q) o, q = 1 - A + r
    const Reals whole = (one - weight) * shares.entries + shares.slot;
    result = {one, weight * shares.entries / whole, (weight * shares.entries - shares.slot) / whole};
  }
}

// The changes of kWidth entries from j on, by inner products; -1, which no change is, where the terms cancel.
template <Change change, class L>
[[gnu::always_inline]] inline void expand(const ChangeTerms& terms, const SlotShares& shares, size_t j,
                                          std::span<double> changes, typename L::Reals& least) {
  using Reals = typename L::Reals;
  Reals weight, logit, norm, product;
  L::load(&terms.weights[j], weight);
  L::load(&terms.logits[j], logit);
  L::load(&terms.squared_norms[j], norm);
  L::load(&changes[j], product);
  weight *= terms.attention.rest;
  Coefficients<Reals> by;
  coefficients<change>(weight, logit, shares, by);
  const Reals own = by.a * by.a * norm + by.b * by.b * terms.output_norm;
  const Reals distance = own - 2.0 * (by.a * by.b) * product;
  const Reals measured = by.w * by.w * distance;
  const Reals result = distance < kCancelled * own ? Reals{} - 1.0 : measured;
  least = result < least ? result : least;
  L::store(result, &changes[j]);
}

// All changes; returns whether the terms of one of them cancel.
template <Change change>
bool expand(const ChangeTerms& terms, const SlotShares& shares, std::span<double> changes) {
  bool cancels = false;
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Reals least = {};
        size_t j = 0;
        for (; j + L::kWidth <= changes.size(); j += L::kWidth) {
          expand<change, L>(terms, shares, j, changes, least);
        }
        for (size_t l = 0; l < L::kWidth; ++l) cancels |= least[l] < 0;
        Lanes<1>::Reals last = {};
        for (; j < changes.size(); ++j) expand<change, Lanes<1>>(terms, shares, j, changes, last);
        cancels |= last[0] < 0;
      });
  return cancels;
}

// x <- a v - b o
void combine(double a, VectorView value, double b, VectorView output, std::span<double> x) {
  for (size_t c = 0; c < x.size(); ++c) x[c] = a * value[c] - b * output[c];
}

// The changes whose terms cancel, from the differences themselves.
template <Change change>
void measure_cancelled(const ChangeTerms& terms, const SlotShares& shares, std::span<double> changes) {
  std::vector<size_t> cancelled;
  std::vector<double> scales;
  for (size_t j = 0; j < changes.size(); ++j) {
    if (changes[j] < 0) cancelled.push_back(j);
  }
  Matrix differences(static_cast<int64_t>(cancelled.size()), terms.values.cols);
  for (size_t i = 0; i < cancelled.size(); ++i) {
    const size_t j = cancelled[i];
    Coefficients<double> by;
    coefficients<change>(terms.weights[j] * terms.attention.rest, terms.logits[j], shares, by);
    scales.push_back(by.w * by.w);
    combine(by.a, terms.values.row(static_cast<int64_t>(j)), by.b, terms.output,
            differences.row(static_cast<int64_t>(i)));
  }
  const std::vector<double> norms = terms.space.squared_norms(differences);
  for (size_t i = 0; i < cancelled.size(); ++i) changes[cancelled[i]] = scales[i] * norms[i];
}

template <Change change>
void measure_changes(const ChangeTerms& terms, std::span<double> changes) {
  const SlotShares shares(terms.attention.log_sum_exp);
  if (expand<change>(terms, shares, changes)) measure_cancelled<change>(terms, shares, changes);
}

}  // namespace

QueryAttention query_attention(VectorView logits, double largest, bool leaves_out_dominant,
                               std::span<double> weights) {
  const double sum = softmax(logits, largest, weights);
  if (leaves_out_dominant && sum < 2) {  // the largest weight is 1 / sum
    return leave_out(logits, std::ranges::max_element(logits) - logits.begin(), weights);
  }
  QueryAttention attention;
  attention.log_sum_exp = largest + std::log(sum);
  return attention;
}

void measure_changes(Change change, const ChangeTerms& terms, std::span<double> changes) {
  switch (change) {
    case Change::value:
      std::ranges::fill(changes, 0.0);
      return measure_changes<Change::value>(terms, changes);
    case Change::key:
      return measure_changes<Change::key>(terms, changes);
    case Change::joint:
      return measure_changes<Change::joint>(terms, changes);
    case Change::exact:
      return measure_changes<Change::exact>(terms, changes);
    case Change::slot:
      return measure_changes<Change::slot>(terms, changes);
  }
}

double dominant_change(Change change, const QueryAttention& attention, VectorView value, VectorView others,
                       const ValueSpace& space) {
  if (change == Change::exact && attention.others == -kInfinity) return kInfinity;
  // o = lead v + rest o', o' the others' output, so v - o = rest (v - o'): all changes are w^2 || a v - b o' ||^2.
  const double turned = attention.logit * attention.rest;
  Coefficients<double> by{attention.lead, 1, 1};
  if (change == Change::value) by.b = 0;
  if (change == Change::joint) by = {attention.lead, 1 + turned, turned};
  // With a logit of 0 against theirs it leaves the others what the logistic function says.
  if (change == Change::slot) by = {1, attention.lead, sigmoid(attention.others) - attention.rest};
  std::vector<double> difference(value.size());
  combine(by.a, value, by.b, others, difference);
  return by.w * by.w * space.squared_norm(difference);
}

}  // namespace kvbound::reference
