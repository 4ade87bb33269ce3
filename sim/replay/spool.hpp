// A file without a name, to which data goes whose place in the real file is not known yet.
#pragma once

#include <sys/types.h>
#include <span>
#include <string>

namespace kvbound::sim {

class Spool {
 public:
  /// folder  where the file is to be: on the disk of the real one
  explicit Spool(const std::string& folder);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  template <class Number>
  void write(std::span<const Number> numbers) {
    write_bytes(std::as_bytes(numbers));
  }
  /// Reads the next numbers, in the order in which they were written.
  template <class Number>
  void read(std::span<Number> numbers) {
    read_bytes(std::as_writable_bytes(numbers));
  }
  /// Bytes that were written and not read yet.
  off_t left() const { return written_ - position_; }

 private:
  // Both throw IoError.
  void write_bytes(std::span<const std::byte> bytes);
  void read_bytes(std::span<std::byte> bytes);

  std::string folder_;
  int descriptor_ = -1;
  off_t written_ = 0, position_ = 0;
};

}  // namespace kvbound::sim
