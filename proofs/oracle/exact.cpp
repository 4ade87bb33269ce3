#include "exact.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>

namespace kvbound::exact {
namespace {

const Real& at(const Reals& numbers, int64_t i) { return numbers[i]; }

double binomial(size_t of, size_t count) {
  double result = 1;
  for (size_t i = 1; i <= count; ++i) result *= static_cast<double>(of - count + i) / static_cast<double>(i);
  return result;
}

}  // namespace

const char* name(Norm norm) {
  constexpr const char* kNames[] = {"L1", "L2", "L-infinity"};
  return kNames[static_cast<size_t>(norm)];
}

Reals softmax(VectorView logits) { return softmax(Reals(logits.begin(), logits.end())); }

std::vector<Reals> projected_values(MatrixView values, MatrixView output_projection) {
  std::vector<Reals> result;
  for (int64_t i = 0; i < values.rows; ++i) {
    Reals& projected = result.emplace_back(output_projection.cols);
    for (int64_t j = 0; j < output_projection.cols; ++j) {
      for (int64_t c = 0; c < values.cols; ++c) projected[j] += Real(values(i, c)) * output_projection(c, j);
    }
  }
  return result;
}

Real norm(const Reals& vector, Norm norm) {
  Real result = 0;
  for (const Real& entry : vector) {
    if (norm == Norm::l1) result += abs(entry);
    if (norm == Norm::l2) result += entry * entry;
    if (norm == Norm::l_infinity) result = std::max<Real>(result, abs(entry));
  }
  return norm == Norm::l2 ? Real(sqrt(result)) : result;
}

Reals norms(const std::vector<Reals>& projected_values, Norm norm) {
  Reals result;
  for (const Reals& vector : projected_values) result.push_back(exact::norm(vector, norm));
  return result;
}

Reals product(const Reals& a, const Reals& b) {
  Reals result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(a[i] * b[i]);
  return result;
}

std::vector<int64_t> difference(IndexSet all, IndexSet some) {
  std::vector<int64_t> rest;
  std::ranges::set_difference(all, some, std::back_inserter(rest));
  return rest;
}

Reals output_change(const Reals& attention, const std::vector<Reals>& projected_values, IndexSet kept) {
  Reals change = weighted_sum(attention, projected_values);
  const Reals compressed = weighted_sum(oracle::kept_attention_weights(attention, kept), projected_values);
  for (size_t j = 0; j < change.size(); ++j) change[j] -= compressed[j];
  return change;
}

Reals stable_output_change(const Reals& attention, const std::vector<Reals>& projected_values,
                           IndexSet kept) {
  return weighted_sum(oracle::eviction_weights_of_mean(attention, kept), projected_values);
}

std::vector<int64_t> with_best(const Reals& scores, IndexSet excluded, int64_t count) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < std::ssize(scores); ++i) {
    if (!std::ranges::binary_search(excluded, i)) order.push_back(i);
  }
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return at(scores, a) > at(scores, b); });
  order.resize(count);
  order.insert(order.end(), excluded.begin(), excluded.end());
  std::ranges::sort(order);
  return order;
}

Extremes over_all_choices(int64_t tokens, IndexSet fixed, int64_t count,
                          const std::function<Real(IndexSet)>& value) {
  std::vector<int64_t> others;
  for (int64_t i = 0; i < tokens; ++i) {
    if (!std::ranges::binary_search(fixed, i)) others.push_back(i);
  }
  if (binomial(others.size(), static_cast<size_t>(count)) > 0x1p20)
    throw std::length_error("more than 2^20 selections to compare");
  std::vector<bool> taken(others.size(), false);
  std::fill_n(taken.begin(), count, true);
  std::optional<Extremes> extremes;
  do {
    std::vector<int64_t> choice(fixed.begin(), fixed.end());
    for (size_t i = 0; i < others.size(); ++i) {
      if (taken[i]) choice.push_back(others[i]);
    }
    std::ranges::sort(choice);
    const Real result = value(choice);
    if (!extremes) extremes = {result, result};
    extremes->smallest = std::min(extremes->smallest, result);
    extremes->largest = std::max(extremes->largest, result);
  } while (std::prev_permutation(taken.begin(), taken.end()));
  return *extremes;
}

}  // namespace kvbound::exact
