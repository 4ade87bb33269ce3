// The evictions of a replay, step by step.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/session/session.hpp>

namespace kvbound::test {

/// For each step the entries that the KV heads evict; every KV head has this budget.
template <class Layer>
std::vector<std::vector<int64_t>> evictions(const Layer& layer, const Policy& policy, int64_t budget,
                                            int64_t steps) {
  const auto session = reference::make_session();
  const std::vector<int64_t> budgets(layer.view().shape.kv_heads, budget);
  session->compress(layer.view(), policy, budgets);
  std::vector<std::vector<int64_t>> result;
  for (int64_t t = 0; t < steps; ++t) result.push_back(session->step(layer.step(t)).evicted);
  return result;
}
template <class Layer>
std::vector<std::vector<int64_t>> evictions(const Layer& layer, const Policy& policy, int64_t budget) {
  return evictions(layer, policy, budget, layer.steps());
}

}  // namespace kvbound::test
