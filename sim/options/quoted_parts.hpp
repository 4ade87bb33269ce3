// Splits texts at characters that stand outside double quotes.
#pragma once

#include <string_view>
#include <vector>

namespace kvbound::sim {

/// The parts between separators; quotes stay where they are. A quote that is not closed reaches to the end.
inline std::vector<std::string_view> quoted_parts(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  bool quoted = false;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted || text[i] != separator) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace kvbound::sim
