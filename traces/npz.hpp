// An archive of NumPy's savez or savez_compressed: a ZIP archive of .npy files, one for each array.
//
//     .npy    "\x93NUMPY", version, length of the header, header, numbers in C order
//     header  {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//
// Arrays without dimensions are the file's texts: savez(path, q=..., sm_scale=0.125, kv_layout="HND").
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tensor_file.hpp"

namespace kvbound::traces {

/// Types: f8, f4, f2, i8, i4, u4, little-endian; V2, as which ml_dtypes' bfloat16 is written, is BF16. All numbers are in
/// memory.
class NpzFile : public TensorFile {
 public:
  /// Throws TraceError for anything but such an archive, IoError if it cannot be opened.
  explicit NpzFile(const std::string& path);

  const std::string& path() const override { return path_; }
  void read_bytes(const TensorEntry& tensor, int64_t first, std::span<char> out) const override;

 private:
  std::string path_;
  std::map<std::string, std::vector<char>, std::less<>> numbers_;
};

}  // namespace kvbound::traces
