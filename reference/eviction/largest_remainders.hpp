// Rounds shares to whole numbers without changing their sum.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace kvbound::reference {

/// The whole parts of shares, with the rest of the total given one by one to the largest fractional parts;
/// ties: smaller index.
///
/// whole     [shares]: rounded down
/// fraction  [shares]: what was cut off, >= 0, all in one unit
/// total     the sum of the shares
template <class Fraction>
std::vector<int64_t> largest_remainders(std::vector<int64_t> whole, const std::vector<Fraction>& fraction,
                                        int64_t total) {
  std::vector<size_t> order(whole.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](size_t i) -> const Fraction& { return fraction[i]; });
  const int64_t rest = total - std::accumulate(whole.begin(), whole.end(), int64_t{0});
  assert(0 <= rest && rest <= std::ssize(order));
  for (int64_t i = 0; i < rest; ++i) ++whole[order[i]];
  return whole;
}

}  // namespace kvbound::reference
