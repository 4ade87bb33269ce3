// Importances of a model's query heads, which HeadKV shares a budget by. Format of files: traces/README.md.
#pragma once

#include <string>
#include <vector>

namespace kvbound {

struct HeadScores {
  std::string path = {};  ///< of the file, absolute
  std::string text = {};  ///< the whole file
  std::string sha256 = {};
  std::string model = {};  ///< whose heads they are, as the file says
  /// [layers, query heads]: finite numbers >= 0, in decimal as they were printed
  std::vector<std::vector<std::string>> scores = {};
};

}  // namespace kvbound
