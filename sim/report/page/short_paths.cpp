#include "short_paths.hpp"

#include <algorithm>
#include <string_view>

namespace kvbound::sim {
namespace {

bool has_tail(std::string_view path, std::string_view tail) {
  return path == tail || (path.ends_with(tail) && path[path.size() - tail.size() - 1] == '/');
}

std::string short_path(const std::string& path, const std::vector<std::string>& all) {
  for (size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    const std::string_view tail = std::string_view(path).substr(slash + 1);
    const auto is_another = [&](const std::string& other) { return other != path && has_tail(other, tail); };
    if (!tail.empty() && std::ranges::none_of(all, is_another)) return std::string(tail);
  }
  return path;
}

}  // namespace

std::vector<std::string> short_paths(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) names.push_back(short_path(path, paths));
  return names;
}

}  // namespace kvbound::sim
