#include "layer_list.hpp"

#include "number.hpp"

namespace kvbound::sim {

std::optional<std::pair<int64_t, int64_t>> parse_layer_range(std::string_view item, int64_t layers) {
  const size_t dash = item.find('-');
  const auto first = parse_integer(item.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_integer(item.substr(dash + 1));
  if (!first || !last || *first < 0 || *first > *last || *last >= layers) return std::nullopt;
  return std::pair(*first, *last);
}

std::optional<std::vector<int64_t>> parse_layer_list(std::string_view text, int64_t layers) {
  std::vector<int64_t> chosen;
  while (true) {
    const size_t comma = text.find(',');
    const auto range = parse_layer_range(text.substr(0, comma), layers);
    if (!range || (!chosen.empty() && range->first <= chosen.back())) return std::nullopt;
    for (int64_t l = range->first; l <= range->second; ++l) chosen.push_back(l);
    if (comma == std::string_view::npos) return chosen;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace kvbound::sim
