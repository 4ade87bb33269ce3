// Small layers, policies and budgets shared by the tests of sessions.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "random_layer.hpp"

namespace kvbound::test {

using Positions = std::vector<int64_t>;

inline constexpr SnapKv kHost{6, 5};
inline constexpr int64_t kTokens = 30, kRecorded = 8, kSteps = 3, kQueryHeads = 4;
inline constexpr int64_t kGroupSizes[] = {1, 2, 4};

/// A small layer of a shape shared by tests.
inline RandomLayer random_layer(int64_t group_size, uint64_t seed) {
  return {{kQueryHeads, kQueryHeads / group_size, 6, 9}, kTokens, kRecorded, kSteps, seed};
}

/// One budget per KV head, all different.
inline Positions different_budgets(int64_t kv_heads) {
  Positions budgets;
  for (int64_t g = 0; g < kv_heads; ++g) budgets.push_back(kHost.window + 5 + 4 * g);
  return budgets;
}

template <class Kind>
Policy two_stage(std::optional<Decimal> alpha, GqaProduct gqa, Norm norm) {
  Kind selection;
  selection.alpha = alpha;
  selection.gqa = gqa;
  selection.norm = norm;
  return {kHost, {}, selection, {}, {}};
}
inline const Policy kTopK{kHost, {}, TopK{}, {}, {}};

template <class Kind>
std::vector<Policy> two_stage_policies() {
  std::vector<Policy> policies;
  for (const std::optional<Decimal> alpha :
       {std::optional(Decimal{0, 0}), std::optional(Decimal{3, 1}), std::optional(Decimal{5, 1}),
        std::optional(Decimal{1, 0}), std::optional<Decimal>()}) {
    for (const GqaProduct gqa : {GqaProduct::mean_of_products, GqaProduct::product_of_means}) {
      for (const Norm norm : {Norm::l1, Norm::l2}) policies.push_back(two_stage<Kind>(alpha, gqa, norm));
    }
  }
  return policies;
}

inline std::vector<Policy> all_policies() {
  std::vector<Policy> policies{kTopK};
  for (const Policy& policy : two_stage_policies<Critical>()) policies.push_back(policy);
  for (const Policy& policy : two_stage_policies<ThetaSweep>()) policies.push_back(policy);
  return policies;
}

inline Positions range(int64_t first, int64_t last) {
  Positions positions(last - first);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

/// The rows at the given positions, in their order.
inline Matrix rows_at(MatrixView matrix, const Positions& positions) {
  Matrix result(0, matrix.cols);
  for (const int64_t position : positions) result.append_row(matrix.row(position));
  return result;
}

/// Waking threads for layers this small costs more than it saves, on a busy machine a hundred times more. The
/// test of thread counts sets their number itself.
struct OneThread : testing::Environment {
  void SetUp() override { omp_set_num_threads(1); }
};

}  // namespace kvbound::test
