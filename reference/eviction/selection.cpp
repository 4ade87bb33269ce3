#include "selection.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {
namespace {

void require_ranks(VectorView scores, int64_t k) {
  if (k < 0 || k > std::ssize(scores)) {
    throw ShapeMismatch("cannot select " + std::to_string(k) + " of " + std::to_string(scores.size()) +
                        " entries");
  }
  const auto is_nan = [](double score) { return std::isnan(score); };
  const auto first = std::ranges::find_if(scores, is_nan);
  if (first != scores.end()) {
    throw NonFinite("scores[" + std::to_string(first - scores.begin()) + "] is NaN");
  }
}

// The score of the k-th best entry, and the number of entries with this score among the best k.
struct Threshold {
  double score = 0;
  int64_t ties = 0;
};

// k  1..scores.size()
Threshold threshold(VectorView scores, int64_t k) {
  std::vector<double> values(scores.begin(), scores.end());
  const auto last = values.begin() + (k - 1);
  std::nth_element(values.begin(), last, values.end(), std::greater<>());
  const double score = *last;
  return {score, k - std::count_if(values.begin(), last, [&](double value) { return value > score; })};
}

}  // namespace

std::vector<int64_t> rank_top(VectorView scores, int64_t k) {
  std::vector<int64_t> order = select_top(scores, k);
  const auto score = [&](int64_t i) { return scores[i]; };
  std::ranges::sort(order,
                    [&](int64_t a, int64_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  return order;
}

std::vector<int64_t> select_top(VectorView scores, int64_t k) {
  require_ranks(scores, k);
  if (k == 0) return {};
  auto [least, ties] = threshold(scores, k);
  // One element more than k, because every index is written, and `count` advances only past selected ones:
  // this avoids a branch that the processor would mispredict.
  std::vector<int64_t> selected(static_cast<size_t>(k) + 1);
  size_t count = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool tie = scores[i] == least;
    selected[count] = static_cast<int64_t>(i);
    count += static_cast<size_t>((scores[i] > least) | (tie & (ties > 0)));
    ties -= tie;
  }
  selected.pop_back();
  return selected;
}

}  // namespace kvbound::reference
