// The selections of `theta-sweep` by its definition, in 50 digits.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include <kvbound/proofs/oracle/bounded.hpp>

namespace kvbound::oracle {

/// The top k of the first `candidates` entries by sum_h A^h (lambda + N^h / mean N^h), ascending, for lambda
/// in 0, 25 points from 10^-3 to 10^3, infinity.
///
/// weights, norms  [heads][entries], of which the values are read
inline std::vector<std::vector<int64_t>> swept_selections(const Rows& weights, const Rows& norms,
                                                          int64_t candidates, int64_t k) {
  std::vector<std::optional<Real>> lambdas{Real(0)};
  for (int i = 0; i < 25; ++i) lambdas.emplace_back(pow(Real(10), Real(i) / 4 - 3));
  lambdas.emplace_back();  // infinity
  std::vector<std::vector<int64_t>> selections;
  for (const std::optional<Real>& lambda : lambdas) {
    Reals scores(candidates);
    for (size_t h = 0; h < weights.size(); ++h) {
      const Real mean_norm = sum(norms[h]).value / std::ssize(norms[h]);
      for (size_t j = 0; j < scores.size(); ++j) {
        scores[j] += weights[h][j].value * (lambda ? *lambda + norms[h][j].value / mean_norm : Real(1));
      }
    }
    std::vector<int64_t>& ranked = selections.emplace_back();
    for (int64_t i = 0; i < candidates; ++i) ranked.push_back(i);
    std::ranges::stable_sort(ranked, std::ranges::greater(), [&](int64_t i) { return scores[i]; });
    ranked.resize(k);
    std::ranges::sort(ranked);
  }
  return selections;
}

}  // namespace kvbound::oracle
