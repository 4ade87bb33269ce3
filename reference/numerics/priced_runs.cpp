#include "priced_runs.hpp"

#include <algorithm>
#include <cstddef>

#include "instruction_set.hpp"

namespace kvbound::reference {
namespace {

// Of `count` columns from `first` on, in one pass: the best of all divisions of the first rows;
// less and plus the sum of these rows it is what a division that ends there is worth to a run that
// falls, or rises, behind it.
template <class L>
[[gnu::always_inline]] inline void add_columns(MatrixView terms, size_t first, size_t count,
                                               VectorView prices, std::vector<double>& result) {
  using Reals = typename L::Reals;
  double some[kLanes] = {};
  std::copy_n(prices.begin() + static_cast<std::ptrdiff_t>(first), count, some);
  Reals price[L::kVectors], sum[L::kVectors] = {}, best[L::kVectors] = {}, rising[L::kVectors] = {},
                            falling[L::kVectors] = {};
  for (size_t v = 0; v < L::kVectors; ++v) L::load(some + v * L::kWidth, price[v]);
  for (int64_t j = 0; j < terms.rows; ++j) {
    const double* const row = terms.row(j).data() + first;
    if (count < kLanes) std::copy_n(row, count, some);
    for (size_t v = 0; v < L::kVectors; ++v) {
      Reals term;
      L::load((count < kLanes ? some : row) + v * L::kWidth, term);
      sum[v] += term;
      const Reals up = rising[v] + sum[v], down = falling[v] - sum[v];
      best[v] = (up < down ? down : up) - price[v];
      const Reals less = best[v] - sum[v], more = best[v] + sum[v];
      rising[v] = rising[v] < less ? less : rising[v];
      falling[v] = falling[v] < more ? more : falling[v];
    }
  }
  for (size_t v = 0; v < L::kVectors; ++v) L::store(best[v], some + v * L::kWidth);
  std::copy_n(some, count, result.begin() + static_cast<std::ptrdiff_t>(first));
}

}  // namespace

std::vector<double> priced_runs(MatrixView terms, VectorView prices) {
  std::vector<double> result(prices.size());
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        for (size_t first = 0; first < prices.size(); first += kLanes) {
          add_columns<decltype(lanes)>(terms, first, std::min(kLanes, prices.size() - first), prices, result);
        }
      });
  return result;
}

}  // namespace kvbound::reference
