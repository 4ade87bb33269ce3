#include "layer_choice.hpp"

#include <algorithm>
#include <set>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/layer_list.hpp>

namespace kvbound::sim {

std::optional<std::vector<int64_t>> layers_named(std::string_view list, const traces::TraceInfo& info) {
  const std::vector<int64_t> numbers = traces::layer_numbers(info);
  std::set<int64_t> chosen;
  while (true) {
    const size_t comma = list.find(',');
    const auto range = traces::parse_layer_range(list.substr(0, comma), numbers.back() + 1);
    if (!range) return std::nullopt;
    const auto begin = std::ranges::lower_bound(numbers, range->first);
    const auto end = std::ranges::upper_bound(numbers, range->second);
    if (begin == end) return std::nullopt;
    for (auto number = begin; number != end; ++number) chosen.insert(number - numbers.begin());
    if (comma == std::string_view::npos) return std::vector(chosen.begin(), chosen.end());
    list.remove_prefix(comma + 1);
  }
}

std::string expected_layers(const traces::TraceInfo& info) {
  return "layers or ranges such as 0,3-5 among " +
         without_middle(traces::layer_list(traces::layer_numbers(info)));
}

}  // namespace kvbound::sim
