#include "against.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace kvbound::sim {
namespace {

// What the cases of one file are compared with in the other.
class Counterparts {
 public:
  explicit Counterparts(const std::vector<std::string>& others) : others_(others) {
    for (int64_t i = 0; i < std::ssize(others); ++i) first_.try_emplace(others[i], i);
  }

  // Of case i with these inputs; negative: none.
  int64_t of(int64_t i, const std::string& inputs) const {
    if (i < std::ssize(others_) && others_[i] == inputs) return i;
    const auto found = first_.find(inputs);
    return found == first_.end() ? -1 : found->second;
  }

 private:
  const std::vector<std::string>& others_;
  std::map<std::string, int64_t> first_;  // the first case of each input
};

Dtype accumulator(const CheckResult& result) {
  return result.declared ? result.declared->accumulate : Dtype::f64;
}

// The rows of cases of the same inputs, which are as many in both.
RowPairs pairs_of(const SharedCases& cases, const CheckedRows& a, const CheckedRows& b) {
  RowPairs pairs;
  for (const auto& [own, other] : cases.pairs) {
    for (int64_t i = 0; i < a.begins[own + 1] - a.begins[own]; ++i)
      pairs.rows.emplace_back(a.begins[own] + i, b.begins[other] + i);
  }
  return pairs;
}

}  // namespace

SharedCases shared_cases(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const Counterparts in_a(a), in_b(b);
  SharedCases cases;
  std::set<std::pair<int64_t, int64_t>> pairs;
  for (int64_t i = 0; i < std::ssize(a); ++i) {
    if (const int64_t other = in_b.of(i, a[i]); other >= 0)
      pairs.emplace(i, other);
    else
      cases.only_a.push_back(i);
  }
  for (int64_t i = 0; i < std::ssize(b); ++i) {
    if (const int64_t own = in_a.of(i, b[i]); own >= 0)
      pairs.emplace(own, i);
    else
      cases.only_b.push_back(i);
  }
  cases.pairs.assign(pairs.begin(), pairs.end());
  return cases;
}

CheckComparison compare_results(const CheckResult& a, const CheckResult& b) {
  CheckComparison result{shared_cases(a.cases->inputs, b.cases->inputs), {}};
  if (a.cases->layer) {
    if (!result.cases.pairs.empty())
      result.rows = compare_layer_rows(a.cases->layer->shape, a.cases->layer->claims, b.cases->layer->claims);
    return result;
  }
  for (const CheckedRows& own : a.cases->rows) {
    const auto other = std::ranges::find(b.cases->rows, own.tensor, &CheckedRows::tensor);
    if (other == b.cases->rows.end() || other->unit != own.unit) continue;
    result.rows.tensors.push_back(compare_rows(own.tensor, own.rows, other->rows,
                                               pairs_of(result.cases, own, *other),
                                               coarser(accumulator(a), accumulator(b))));
  }
  return result;
}

}  // namespace kvbound::sim
