// One safetensors file, read strictly: anything that the format does not allow is an error before any number is read.
//
//     bytes 0..7      N, unsigned, little-endian
//     bytes 8..8+N    the header, JSON: name -> {dtype, shape, data_offsets}, __metadata__ -> {name -> text}
//     the rest        the tensors' numbers, little-endian, C order, without holes
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>

#include "input_file.hpp"

namespace kvbound::traces {

inline constexpr int64_t kDefaultHeaderLimit = int64_t{16} << 20;

/// A tensor as the header describes it.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t elements = 0;       ///< product of the shape; 1 for rank 0
  int64_t bytes = 0;          ///< of its numbers
  int64_t begin = 0;          ///< position of its numbers, in bytes from the file's start
  int64_t header_offset = 0;  ///< position of its description in the header, likewise
};

/// A shape as text, such as "[2, 2048, 64]".
std::string shape_text(const std::vector<int64_t>& shape);

/// A file's metadata strings, and their place in the file.
struct Metadata {
  std::string path;
  int64_t offset = -1;  ///< bytes from the file's start; negative if there is no metadata
  std::map<std::string, std::string, std::less<>> strings;
};

/// Whether NaN and infinity are errors or allowed as data.
enum class NonFiniteNumbers { refused, allowed };

class SafetensorsFile {
 public:
  /// Throws TraceError for anything but a well-formed safetensors file, IoError if it cannot be opened.
  explicit SafetensorsFile(const std::string& path, int64_t header_limit = kDefaultHeaderLimit);

  const std::string& path() const { return file_.path(); }
  const InputFile& file() const { return file_; }
  const Metadata& metadata() const { return metadata_; }
  /// All tensors, in the order of their data in the file.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Null if there is no tensor of that name.
  const TensorEntry* find(std::string_view name) const;

  /// Reads elements first, first + 1, ... of a real tensor until `out` is full. Extra memory does not depend on the
  /// size of `out`. Safe to call from several threads at a time.
  ///
  /// throws  TraceError if the tensor is not real, the file was truncated after it was opened, or a number is NaN or
  ///         infinite and that is not allowed; ShapeMismatch if the tensor has fewer elements; IoError
  void read(const TensorEntry& tensor, int64_t first, std::span<double> out,
            NonFiniteNumbers non_finite = NonFiniteNumbers::refused) const;
  /// The same for I64, I32 and U32.
  void read(const TensorEntry& tensor, int64_t first, std::span<int64_t> out) const;

 private:
  template <class Number, class Widen>
  void read_in_chunks(const TensorEntry& tensor, int64_t first, std::span<Number> out,
                      const Widen& widen) const;

  InputFile file_;
  Metadata metadata_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string_view, const TensorEntry*> by_name_;
};

}  // namespace kvbound::traces
