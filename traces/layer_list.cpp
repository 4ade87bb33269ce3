#include "layer_list.hpp"

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

}  // namespace kvbound::traces
