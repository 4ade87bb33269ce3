// A regular file, read at any position. Never mapped: a mapped file that is cut while it is read is a SIGBUS,
// here it is an error message.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kvbound::traces {

class InputFile {
 public:
  /// Throws IoError if the file can't be opened, TraceError if it is a directory, a FIFO, a device, ... .
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Bytes, when it was opened.
  int64_t size() const { return size_; }

  /// Fills `out` with the bytes from `offset` on; `field` says in messages what they are. Safe from several
  /// threads at a time.
  ///
  /// throws  TraceError if the file ends before; IoError if it can't be read
  void read(int64_t offset, std::span<char> out, const std::string& field) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace kvbound::traces
