#include "layer_list.hpp"

#include "number_in.hpp"

namespace kvbound::traces {

std::string layer_list(const std::vector<int64_t>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(layers[i]);
    if (end - i > 1) text.append("-").append(std::to_string(layers[end - 1]));
    i = end;
  }
  return text;
}

std::optional<std::pair<int64_t, int64_t>> parse_layer_range(std::string_view item, int64_t layers) {
  const size_t dash = item.find('-');
  const auto first = number_in<int64_t>(item.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : number_in<int64_t>(item.substr(dash + 1));
  if (!first || !last || *first < 0 || *first > *last || *last >= layers) return std::nullopt;
  return std::pair(*first, *last);
}

std::optional<std::vector<int64_t>> parse_layer_list(std::string_view text, int64_t layers, int64_t most) {
  std::vector<int64_t> chosen;
  while (true) {
    const size_t comma = text.find(',');
    const auto range = parse_layer_range(text.substr(0, comma), layers);
    if (!range || (!chosen.empty() && range->first <= chosen.back())) return std::nullopt;
    if (range->second - range->first >= most - std::ssize(chosen)) return std::nullopt;
    for (int64_t l = range->first; l <= range->second; ++l) chosen.push_back(l);
    if (comma == std::string_view::npos) return chosen;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace kvbound::traces
