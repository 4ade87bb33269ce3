// A regular file that is read at any position. It is not memory-mapped: truncation of a mapped file while it
// is read raises SIGBUS, whereas here it is an error with a message.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kvbound::traces {

class InputFile {
 public:
  /// Throws IoError if the file cannot be opened, TraceError if it is a directory, a FIFO, a device, ... .
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Size in bytes when the file was opened.
  int64_t size() const { return size_; }

  /// Fills `out` with the bytes from `offset` on; `field` names them in messages. Safe to call from
  /// several threads at a time.
  ///
  /// throws  TraceError if the file ends too early; IoError if it cannot be read
  void read(int64_t offset, std::span<char> out, const std::string& field) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// A file's contents. Throws TraceError if it has more than `most` bytes, a number of
/// whole MiB; as InputFile.
std::string whole_text(const std::string& path, int64_t most = INT64_MAX);
/// The same of a file that may also be a pipe or another stream, which is read to its
/// end; `-` is standard input.
std::string whole_input(const std::string& path, int64_t most = INT64_MAX);

}  // namespace kvbound::traces
