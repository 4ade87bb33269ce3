// Paths as titles have them.
#pragma once

#include <string>
#include <vector>

namespace kvbound::sim {

/// Of each path the shortest tail of whole components that tells it from all other paths: of a/x.json,
/// a/y.json and b/y.json these are x.json, a/y.json and b/y.json. Equal paths have equal tails.
std::vector<std::string> short_paths(const std::vector<std::string>& paths);

}  // namespace kvbound::sim
