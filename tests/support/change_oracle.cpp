#include "change_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <stdexcept>

namespace kvbound::oracle {
namespace {

using reference::Change;

// sum_j w_j v_j, or sum_j |w_j| |v_j|.
Reals combined(const Reals& weights, MatrixView values, bool absolute) {
  Reals sum(values.cols);
  for (size_t j = 0; j < weights.size(); ++j) {
    const VectorView value = values.row(j);
    for (size_t c = 0; c < sum.size(); ++c) {
      const Real term = weights[j] * value[c];
      sum[c] += absolute ? abs(term) : term;
    }
  }
  return sum;
}

// || x W ||^2, or || x ||^2 without a W. absolute: with |W|.
Real squared_length(const Reals& x, MatrixView projection, bool absolute) {
  Real sum = 0;
  if (projection.rows == 0) {
    for (const Real& entry : x) sum += entry * entry;
    return sum;
  }
  for (int64_t m = 0; m < projection.cols; ++m) {
    Real entry = 0;
    for (size_t c = 0; c < x.size(); ++c) {
      const Real weight = projection(c, m);
      entry += x[c] * (absolute ? abs(weight) : weight);
    }
    sum += entry * entry;
  }
  return sum;
}

// The weights after deleting some entries; 0 for the deleted ones.
Reals weights_without(Reals logits, Indices removed) {
  for (auto entry = removed.rbegin(); entry != removed.rend(); ++entry) logits.erase(logits.begin() + *entry);
  Reals weights = exact_weights(logits);
  for (const int64_t entry : removed) weights.insert(weights.begin() + entry, Real(0));
  return weights;
}

// The changes of weights by deletion, A'_i - A_i = A_i A_E / (1 - A_E), accurate even where they are below 10^-50 A_i.
Reals gained_weights(const Reals& logits, Indices removed) {
  const Reals before = exact_weights(logits), after = weights_without(logits, removed);
  Real left = 0, taken = 0;
  for (size_t j = 0; j < before.size(); ++j) (after[j] > 0 ? left : taken) += before[j];
  Reals gained;
  for (size_t j = 0; j < before.size(); ++j) {
    gained.push_back(after[j] > 0 ? before[j] * taken / left : -before[j]);
    if (abs(gained[j] - (after[j] - before[j])) > Real("1e-45")) throw std::logic_error("no deletion");
  }
  return gained;
}

// A change as a combination of the values, and the weights of its absolute terms.
struct ChangeWeights {
  Reals signed_sum, terms;
};

// A z (v - o) + A b v
ChangeWeights taylor_weights(const Reals& weights, const Real& logit, const Real& b, size_t at) {
  ChangeWeights result;
  for (const Real& weight : weights) {
    result.signed_sum.push_back(-weights[at] * logit * weight);
    result.terms.push_back(abs(result.signed_sum.back()));
  }
  result.signed_sum[at] += weights[at] * (b + logit);
  result.terms[at] += weights[at] * (b + abs(logit));
  return result;
}

// o - o' where an entry's key and value are 0 but its slot remains: A v + (sum of the others A_i v_i) (r - A) / q with
// r = e^0 / sum e^z, q = 1 - A + r.
ChangeWeights slot_weights(const Reals& logits, const Reals& weights, size_t at) {
  const Real r = weights[at] * exp(-logits[at]);
  Real q = r;
  for (size_t j = 0; j < weights.size(); ++j) q += j == at ? Real(0) : weights[j];
  Reals zeroed = logits;
  zeroed[at] = 0;
  const Reals after = exact_weights(zeroed);
  ChangeWeights result;
  for (size_t j = 0; j < weights.size(); ++j) {
    result.signed_sum.push_back(weights[j] * (j == at ? Real(1) : (r - weights[at]) / q));
    result.terms.push_back(weights[j] * (j == at ? Real(1) : (weights[at] + r) / q));
    const Real difference = weights[j] - (j == at ? Real(0) : after[j]);
    if (abs(result.signed_sum[j] - difference) > Real("1e-45")) throw std::logic_error("no slot");
  }
  return result;
}

ChangeWeights change_weights(Change change, const Reals& logits, int64_t entry) {
  const auto at = static_cast<size_t>(entry);
  const Reals weights = exact_weights(logits);
  if (change == Change::value) return taylor_weights(weights, 0, 1, at);
  if (change == Change::key) return taylor_weights(weights, logits[at], 0, at);
  if (change == Change::joint) return taylor_weights(weights, logits[at], 1, at);
  if (change == Change::slot) return slot_weights(logits, weights, at);
  ChangeWeights result{gained_weights(logits, std::vector{entry}), {}};
  for (const Real& weight : result.signed_sum) result.terms.push_back(abs(weight));
  return result;
}

}  // namespace

Reals exact_logits(VectorView query, MatrixView keys, double scale) {
  Reals logits(keys.rows);
  for (int64_t j = 0; j < keys.rows; ++j) {
    Real& logit = logits[j];
    for (size_t c = 0; c < query.size(); ++c) logit += Real(query[c]) * keys.row(j)[c];
    logit *= scale;
  }
  return logits;
}

Reals exact_weights(const Reals& logits) {
  const Real largest = *std::ranges::max_element(logits);
  Reals weights;
  Real sum = 0;
  for (const Real& logit : logits) sum += weights.emplace_back(exp(logit - largest));
  for (Real& weight : weights) weight /= sum;
  return weights;
}

Measured& Measured::operator+=(const Measured& other) {
  value += other.value;
  terms += other.terms;
  return *this;
}

Measured change(Change change, const Reals& logits, MatrixView values, MatrixView projection, int64_t entry) {
  const ChangeWeights weights = change_weights(change, logits, entry);
  return {squared_length(combined(weights.signed_sum, values, false), projection, false),
          squared_length(combined(weights.terms, values, true), projection, true)};
}

std::vector<Measured> removal(const Reals& logits, MatrixView values, Indices removed) {
  const Reals weights = gained_weights(logits, removed);
  const Reals sums = combined(weights, values, false), terms = combined(weights, values, true);
  std::vector<Measured> change;
  for (size_t c = 0; c < sums.size(); ++c) change.push_back({sums[c], terms[c]});
  return change;
}

testing::AssertionResult near(double actual, const Measured& expected) {
  const Real allowed = Real("1e-9") * abs(expected.value) + Real("1e-13") * expected.terms +
                       std::numeric_limits<double>::min();
  if (std::isfinite(actual) && abs(Real(actual) - expected.value) <= allowed) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << std::setprecision(17) << actual << " is not within " << allowed
                                     << " of " << std::setprecision(25) << expected.value;
}

}  // namespace kvbound::oracle
