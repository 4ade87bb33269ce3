// A file of named tensors and of named texts about them, whatever its format.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>

namespace kvbound::traces {

inline constexpr int64_t kDefaultHeaderLimit = int64_t{16} << 20;

/// A tensor as the header describes it.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t elements = 0;  ///< product of the shape; 1 for rank 0
  int64_t bytes = 0;     ///< of its numbers
  int64_t begin = 0;     ///< position of its numbers, in bytes from the file's start; negative: compressed
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

class TensorFile {
 public:
  virtual ~TensorFile() = default;

  virtual const std::string& path() const = 0;
  const Metadata& metadata() const { return metadata_; }
  /// All tensors, in the order of their data in the file.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Null if there is no tensor of that name.
  const TensorEntry* find(std::string_view name) const;

  /// Reads elements first, first + 1, ... of a real tensor until `out` is full. Extra memory does not depend
  /// on the size of `out`. Safe to call from several threads at a time.
  ///
  /// throws  TraceError if the tensor is not real, the file was truncated after it was opened, or a number is
  ///         NaN or infinite and that is not allowed; ShapeMismatch if the tensor has fewer elements; IoError
  void read(const TensorEntry& tensor, int64_t first, std::span<double> out,
            NonFiniteNumbers non_finite = NonFiniteNumbers::refused) const;
  /// All elements of a real tensor of 16 bits, also as their bits. The same errors; ShapeMismatch if the
  /// sizes are not those of the tensor.
  void read(const TensorEntry& tensor, std::span<double> out, std::span<uint16_t> bits) const;
  /// The same for I64, I32 and U32.
  void read(const TensorEntry& tensor, int64_t first, std::span<int64_t> out) const;
  /// The bytes of a tensor of any type, from its byte `first` on. Throws TraceError for a
  /// truncated file, IoError.
  virtual void read_bytes(const TensorEntry& tensor, int64_t first, std::span<char> out) const = 0;

 protected:
  TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;
  /// Takes tensors in the order of their data.
  void set_tensors(std::vector<TensorEntry> tensors);

  Metadata metadata_;

 private:
  /// Throws TraceError for the first of the numbers, which begin at element `begin`, that is not finite.
  [[noreturn]] void refuse_non_finite(const TensorEntry& tensor, std::span<const double> numbers,
                                      int64_t begin) const;
  template <class Number, class Widen>
  void read_in_chunks(const TensorEntry& tensor, int64_t first, std::span<Number> out,
                      const Widen& widen) const;

  std::vector<TensorEntry> tensors_;
  std::map<std::string_view, const TensorEntry*> by_name_;
};

/// Opens a safetensors file, or an archive of NumPy's savez (npz.hpp), whichever its first bytes say it is.
std::unique_ptr<TensorFile> open_tensors(const std::string& path, int64_t header_limit = kDefaultHeaderLimit);

}  // namespace kvbound::traces
