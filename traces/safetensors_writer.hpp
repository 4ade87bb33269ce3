// Writes a safetensors file from its first byte to its last, with only one piece of it in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>

#include "output_file.hpp"
#include "safetensors.hpp"

namespace kvbound::traces {

/// A tensor to be written.
struct TensorDeclaration {
  std::string name;
  Dtype dtype = Dtype::f64;
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  using Strings = std::vector<std::pair<std::string, std::string>>;

  /// Writes the header: `metadata` as __metadata__, unless it is empty, then the tensors in the given order.
  /// Metadata that are not UTF-8, such as names of files, are written with U+FFFD in place of what is not.
  ///
  /// throws  ShapeMismatch for a negative dimension or more than 2^63 - 1 bytes; Error for a name that occurs
  ///         twice, or a tensor's that is not UTF-8; IoError
  SafetensorsWriter(const std::string& path, const Strings& metadata, std::vector<TensorDeclaration> tensors);

  const std::string& path() const { return file_.path(); }
  /// The file that can be read between prepare() and finish().
  std::string place() const { return file_.place(); }

  /// Appends the next numbers of `tensor`, each rounded once to the tensor's type. Tensors are written in the
  /// order of their declaration, each in any number of pieces.
  ///
  /// throws  ShapeMismatch if another tensor is to be written next, or this one has fewer elements left;
  ///         NonFinite if a number is NaN or infinite (unless that is allowed), or too large for the type;
  ///         Error if the type is not real; IoError
  void append(std::string_view tensor, std::span<const double> numbers,
              NonFiniteNumbers non_finite = NonFiniteNumbers::refused);
  /// The same for an I64 tensor.
  void append(std::string_view tensor, std::span<const int64_t> numbers);

  /// Writes everything to disk after the last number: all steps that can fail for lack of space. Throws
  /// ShapeMismatch if numbers are missing.
  void prepare();
  /// Calls prepare() if it has not been called, and gives the file its name.
  void finish();

 private:
  const TensorDeclaration& take(std::string_view tensor, size_t count);
  template <class Stored, class Number, class Convert>
  void write_all(std::span<const Number> numbers, const Convert& convert);

  OutputFile file_;
  std::vector<TensorDeclaration> tensors_;
  std::vector<int64_t> elements_left_;
  size_t current_ = 0;
  bool prepared_ = false;
};

}  // namespace kvbound::traces
