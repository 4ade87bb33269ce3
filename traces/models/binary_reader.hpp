// Reads a binary file of little-endian numbers and texts from its beginning on, strictly.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>

namespace kvbound::traces {

/// Every function but the first two throws TraceError, which names the byte and the field, and IoError.
class BinaryReader {
 public:
  explicit BinaryReader(const InputFile& file) : file_(file) {}

  int64_t offset() const { return offset_; }
  const std::string& path() const { return file_.path(); }

  [[noreturn]] void refuse(int64_t offset, const std::string& field, const std::string& problem) const {
    throw TraceError(path(), offset, field, problem);
  }

  // Fails if fewer bytes are left; `field` names them.
  void require(int64_t bytes, const std::string& field) const {
    if (bytes <= file_.size() - offset_) return;
    refuse(offset_, field,
           "needs " + std::to_string(bytes) + " bytes; the file ends after " +
               std::to_string(file_.size() - offset_));
  }

  void read(std::span<char> out, const std::string& field) {
    require(std::ssize(out), field);
    while (!out.empty()) {
      if (next_ == buffer_.size()) fill(field);
      const size_t count = std::min(out.size(), buffer_.size() - next_);
      std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(next_), count, out.begin());
      out = out.subspan(count);
      next_ += count;
      offset_ += static_cast<int64_t>(count);
    }
  }

  template <class Number>
  Number number(const std::string& field) {
    std::array<char, sizeof(Number)> bytes;
    read(bytes, field);
    return std::bit_cast<Number>(bytes);
  }

  std::string text(const std::string& field, int64_t most) {
    const int64_t at = offset_;
    const auto length = number<uint64_t>(field);
    if (length > static_cast<uint64_t>(most)) {
      refuse(at, field,
             "is a text of " + std::to_string(length) + " bytes; expected at most " + std::to_string(most));
    }
    require(static_cast<int64_t>(length), field);
    std::string text(length, '\0');
    read(text, field);
    return text;
  }

  void skip(int64_t bytes, const std::string& field) {
    require(bytes, field);
    offset_ += bytes;
    const auto buffered = static_cast<int64_t>(buffer_.size() - next_);
    if (bytes <= buffered) {
      next_ += static_cast<size_t>(bytes);
    } else {
      buffer_.clear();
      next_ = 0;
    }
  }

  // A number of things that take at least so many bytes each.
  int64_t count(const std::string& field, int64_t least_bytes) {
    const int64_t at = offset_;
    const auto count = number<uint64_t>(field);
    if (count > static_cast<uint64_t>((file_.size() - offset_) / least_bytes)) {
      refuse(
          at, field,
          "is " + std::to_string(count) + "; the file has only " + std::to_string(file_.size()) + " bytes");
    }
    return static_cast<int64_t>(count);
  }

 private:
  void fill(const std::string& field) {
    constexpr int64_t kBufferBytes = int64_t{1} << 16;
    buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, file_.size() - offset_)));
    next_ = 0;
    file_.read(offset_, buffer_, field);
  }

  const InputFile& file_;
  std::vector<char> buffer_;
  size_t next_ = 0;     // in the buffer
  int64_t offset_ = 0;  // in the file
};

}  // namespace kvbound::traces
