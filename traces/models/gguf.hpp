// A GGUF file, read strictly: metadata, and weights that are decoded where they are read.
//
//     "GGUF", version 2 or 3, number of tensors, number of metadata entries: 4, 4, 8, 8 bytes, little-endian
//     for each metadata entry: key, type, value
//     for each tensor: name, number of dimensions, dimensions (of a row first), type, offset of its data
//     the tensors' data, each at a multiple of the alignment, in this order, without holes
//
// Bytes behind the last tensor's data are ignored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <kvbound/traces/input_file.hpp>

#include "weight.hpp"

namespace kvbound::traces {

class BinaryReader;

/// A metadata array, of which only its place is kept.
struct GgufArray {
  uint32_t type = 0;  ///< of its items
  int64_t items = 0;
  int64_t begin = 0;  ///< of its items, bytes from the file's start
};

/// A metadata value. Integers of all sizes are int64_t, those beyond 2^63 - 1 uint64_t;
/// both real types are double.
struct GgufValue {
  std::variant<int64_t, uint64_t, double, bool, std::string, GgufArray> value;
  int64_t offset = 0;  ///< of the value, bytes from the file's start
};

struct GgufTensor {
  std::string name;
  uint32_t type = 0;                   ///< its number in ggml
  std::optional<WeightFormat> format;  ///< none: of a type that is not decoded here
  std::vector<int64_t> shape;  ///< in C order: the last dimension is a row; 1 to 4 dimensions, none of them 0
  int64_t header_offset = 0;   ///< of its description, bytes from the file's start
  int64_t begin = 0;           ///< of its data, likewise
  int64_t bytes = 0;           ///< without a format: up to the next tensor's data

  int64_t cols() const { return shape.back(); }
  int64_t rows() const;
};

class GgufFile {
 public:
  /// throws  TraceError for anything but a well-formed GGUF file; IoError
  explicit GgufFile(const std::string& path);
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  /// In the order of their data.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const GgufTensor* find(std::string_view name) const;

  /// The items of a metadata array of this file; `key` names it in messages.
  std::vector<GgufValue> items(const std::string& key, const GgufArray& array) const;

  /// A tensor as a matrix of its rows, which refers to this file. Throws TraceError if it
  /// has none of kWeightFormats.
  Weight weight(const GgufTensor& tensor) const;

 private:
  void read_metadata(BinaryReader& reader, int64_t count);
  void read_tensors(BinaryReader& reader, int64_t count);
  void place_tensors(int64_t data);
  int64_t alignment() const;

  InputFile file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, const GgufTensor*> by_name_;
};

}  // namespace kvbound::traces
