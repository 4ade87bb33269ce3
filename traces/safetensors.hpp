// One safetensors file, read strictly: anything that the format does not allow is an error
// before any number is read.
//
//     bytes 0..7      N, unsigned, little-endian
//     bytes 8..8+N    the header, JSON: name -> {dtype, shape, data_offsets}, __metadata__ -> {name -> text}
//     the rest        the tensors' numbers, little-endian, C order, without holes
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "input_file.hpp"
#include "tensor_file.hpp"

namespace kvbound::traces {

class SafetensorsFile : public TensorFile {
 public:
  /// Throws TraceError for anything but a well-formed safetensors file, IoError if it cannot be opened.
  explicit SafetensorsFile(const std::string& path, int64_t header_limit = kDefaultHeaderLimit);

  const std::string& path() const override { return file_.path(); }
  const InputFile& file() const { return file_; }
  void read_bytes(const TensorEntry& tensor, int64_t first, std::span<char> out) const override;

 private:
  InputFile file_;
};

}  // namespace kvbound::traces
