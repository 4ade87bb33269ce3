#include "evaluation.hpp"

#include <algorithm>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>

namespace kvbound::proofs {

Exact::Exact(const Instance& instance) {
  for (int64_t h = 0; h < instance.query_heads; ++h)
    projected.push_back(exact::projected_values(instance.values, instance.projection_of(h)));
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    attention.push_back(exact::softmax(instance.logits.row(r)));
    head_of_row.push_back(static_cast<size_t>(r / instance.queries()));
  }
}

Computed::Computed(const Instance& instance)
    : attention(instance.logits), norms(instance.query_heads, instance.tokens()) {
  reference::causal_softmax(attention.view(), instance.tokens() - 1);
  for (int64_t h = 0; h < instance.query_heads; ++h) {
    const std::vector<double> row =
        reference::projected_value_norms(instance.values, instance.projection_of(h), kvbound::Norm::l1);
    std::ranges::copy(row, norms.row(h).begin());
  }
}

Bounds::Bounds(const Instance& instance) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r)
    attention.push_back(oracle::softmax(oracle::exactly(instance.logits.row(r))));
  for (int64_t h = 0; h < instance.query_heads; ++h) {
    norms.push_back(
        oracle::projected_value_norms(instance.values, instance.projection_of(h), kvbound::Norm::l1));
  }
}

bool resolved(const oracle::Row& attention, oracle::Indices entries) {
  const oracle::Bounded mass = oracle::sum(oracle::at(attention, entries));
  return mass.value > 4 * mass.bound;
}

}  // namespace kvbound::proofs
