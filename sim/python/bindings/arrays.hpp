// Arrays of Python as the tensors of a file: nothing is written to disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <kvbound/traces/tensor_file.hpp>

namespace kvbound::python {

using Array = nanobind::ndarray<nanobind::ro>;

/// Tensors whose numbers are those of arrays, which it keeps alive. Arrays in C order are read where they
/// are; others are copied first.
class ArrayTensors : public traces::TensorFile {
 public:
  /// what     names them in messages
  /// arrays   name and object: of NumPy, or with __dlpack__ on the CPU; (object, "BF16") is one of 16-bit
  ///          integers that are the bits of BF16
  /// texts    what a file would say of itself
  /// throws   TraceError for another device, or numbers of a type that no tensor has
  ArrayTensors(std::string what, const nanobind::dict& arrays,
               const std::map<std::string, std::string>& texts = {});
  /// Call it with the GIL.
  ~ArrayTensors() override;

  const std::string& path() const override { return what_; }
  void read_bytes(const traces::TensorEntry& tensor, int64_t first, std::span<char> out) const override;

  /// How many arrays have been copied, since the program's start.
  static int64_t copies();

 private:
  void add(const std::string& name, Array array, bool is_bf16);

  std::string what_;
  std::vector<Array> arrays_;
  std::vector<std::unique_ptr<char[]>> copies_;
  std::vector<const char*> data_;  // [tensors], found by TensorEntry::begin
  std::vector<traces::TensorEntry> entries_;
};

}  // namespace kvbound::python
