// An archive of NumPy's savez or savez_compressed: a ZIP archive of .npy files, one for each array.
//
//     .npy    "\x93NUMPY", version, length of the header, header, numbers in C order
//     header  {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//
// Arrays without dimensions are the file's texts: savez(path, q=..., sm_scale=0.125, kv_layout="HND").
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "tensor_file.hpp"

namespace kvbound::traces {

/// Types: f8, f4, f2, i8, i4, i2, i1, u8, u4, u2, u1 and b1, little-endian; V2, as which
/// ml_dtypes' bfloat16 is written, is BF16. Arrays of others are texts that say so. Numbers are in
/// memory once they have been read.
class NpzFile : public TensorFile {
 public:
  /// Throws TraceError for anything but such an archive.
  explicit NpzFile(const std::string& path);
  ~NpzFile() override;

  const std::string& path() const override { return path_; }
  void read_bytes(const TensorEntry& tensor, int64_t first, std::span<char> out) const override;

 private:
  class Archive;
  struct Member;

  std::string path_;
  std::unique_ptr<Archive> archive_;
  mutable std::mutex mutex_;  // of what follows, and of the archive
  mutable std::map<std::string, Member, std::less<>> members_;
};

}  // namespace kvbound::traces
