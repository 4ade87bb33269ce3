// The JSON document of every command: parts, each with facts, axes and cubes (README.md),
// and where they come from.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cube.hpp"
#include "json.hpp"

namespace kvbound::sim {

/// Which document this is; a change that breaks readers changes the number.
inline constexpr std::string_view kDocumentSchema = "kvbound-2";

/// Writes a document part by part: that of many traces need not fit into memory.
class DocumentWriter {
 public:
  /// write  is given the text piece by piece
  DocumentWriter(std::string_view command, std::function<void(std::string_view)> write);
  /// Cubes of detail, and columns and cubes that say nothing, are left out; a number
  /// that is not finite is null.
  void add(const Part& part);
  /// The document's end; call it once.
  ///
  /// provenance  an object
  void finish(const Json& provenance);

 private:
  std::function<void(std::string_view)> write_;
  bool has_parts_ = false;
};

}  // namespace kvbound::sim
