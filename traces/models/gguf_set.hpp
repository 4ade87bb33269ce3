// The files of one GGUF model: a single one, or the parts into which llama.cpp's gguf-split divided it.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gguf.hpp"

namespace kvbound::traces {

/// A tensor and the file that holds it.
struct PlacedGgufTensor {
  const GgufFile* file = nullptr;
  const GgufTensor* tensor = nullptr;

  explicit operator bool() const { return tensor != nullptr; }
};

class GgufSet {
 public:
  /// Opens a model whose metadata says of how many parts it is (split.count; one, if it does not say), and
  /// all of them: NAME-00001-of-00003.gguf and its successors in the same folder.
  ///
  /// path    of the single file, or of the first part
  /// throws  TraceError for ill-formed files, another part than the first, another name of it, and parts that
  ///         contradict each other; IoError, if a part is missing, too
  explicit GgufSet(const std::string& path);

  /// The file that has the model's metadata.
  const GgufFile& first() const { return files_.front(); }
  const std::map<std::string_view, PlacedGgufTensor>& tensors() const { return tensors_; }
  /// The tensor of that name; converts to false if there is none.
  PlacedGgufTensor find(std::string_view name) const;
  std::vector<std::string> paths() const;

 private:
  void open_parts(int64_t count);
  void add_tensors(const GgufFile& file);

  std::deque<GgufFile> files_;
  std::map<std::string_view, PlacedGgufTensor> tensors_;
};

}  // namespace kvbound::traces
