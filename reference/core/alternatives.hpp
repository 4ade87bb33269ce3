// The alternatives of a variant, such as all hosts, without a list of them.
#pragma once

#include <cstddef>
#include <variant>

namespace kvbound {

/// Calls visit(alternative) with each alternative of a variant, default-constructed, in the variant's order.
template <class Variant, size_t index = 0, class Visit>
void for_each_alternative(const Visit& visit) {
  if constexpr (index < std::variant_size_v<Variant>) {
    std::variant_alternative_t<index, Variant> alternative;
    visit(alternative);
    for_each_alternative<Variant, index + 1>(visit);
  }
}

}  // namespace kvbound
