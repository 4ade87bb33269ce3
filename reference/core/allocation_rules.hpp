// Which budgets an allocation makes unequal (across heads, across layers), as plain data.
#pragma once

#include <variant>

#include "policy.hpp"

namespace kvbound {

struct AllocationRules {
  bool across_heads = false;   ///< a layer's KV heads keep different numbers of entries
  bool across_layers = false;  ///< layers have different budgets
  bool by_scores = false;      ///< as the scores of the layer's entries are
};

namespace detail {

inline AllocationRules allocation_rules(const Uniform&) { return {}; }
inline AllocationRules allocation_rules(const AdaKv&) { return {.across_heads = true, .by_scores = true}; }
inline AllocationRules allocation_rules(const Pyramid&) { return {.across_layers = true}; }
inline AllocationRules allocation_rules(const HeadKv&) {
  return {.across_heads = true, .across_layers = true};
}

}  // namespace detail

inline AllocationRules rules_of(const Allocation& allocation) {
  return std::visit([](const auto& one) { return detail::allocation_rules(one); }, allocation);
}

}  // namespace kvbound
