#include "selection.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "shape_check.hpp"

namespace kvbound::reference {

std::vector<int64_t> rank_top(VectorView scores, int64_t k) {
  if (k < 0 || k > static_cast<int64_t>(scores.size())) {
    throw ShapeMismatch("cannot select " + std::to_string(k) + " of " + std::to_string(scores.size()) +
                        " entries");
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) throw NonFinite("scores[" + std::to_string(i) + "] is NaN");
  }
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto score = [&](int64_t i) { return scores[static_cast<size_t>(i)]; };
  const auto better = [&](int64_t a, int64_t b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  };
  // nth_element first: linear in the entries, so that only the chosen ones are sorted.
  if (k < static_cast<int64_t>(order.size()))
    std::nth_element(order.begin(), order.begin() + k, order.end(), better);
  order.resize(static_cast<size_t>(k));
  std::ranges::sort(order, better);
  return order;
}

std::vector<int64_t> select_top(VectorView scores, int64_t k) {
  std::vector<int64_t> selected = rank_top(scores, k);
  std::ranges::sort(selected);
  return selected;
}

}  // namespace kvbound::reference
