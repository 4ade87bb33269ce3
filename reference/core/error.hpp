// Exceptions, one type per cause: a wrong argument (ShapeMismatch, NonFinite,
// InvalidPolicy), a malformed file (TraceError), a device (DeviceError, NoDevice)
// or the operating system (IoError). Every message holds the wrong values.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvbound {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Two arguments whose shapes do not fit each other.
class ShapeMismatch : public Error {
 public:
  using Error::Error;
};

/// An argument that holds NaN or infinity where only finite numbers are allowed.
class NonFinite : public Error {
 public:
  using Error::Error;
};

/// A policy, option or budget that is unknown, out of range, or meaningless for the given layer.
class InvalidPolicy : public Error {
 public:
  using Error::Error;
};

/// A path, or the name of a value, as messages have it: one of more than 120 bytes without its middle. Its
/// beginning and its end say which it is, however long the names are that some file holds.
inline std::string without_middle(const std::string& path) {
  constexpr size_t kMost = 120, kBeginning = 40, kEnd = 77;
  if (path.size() <= kMost) return path;
  return path.substr(0, kBeginning) + "..." + path.substr(path.size() - kEnd);
}

/// A malformed file. The message says which file, which byte, which field, and what was expected.
class TraceError : public Error {
 public:
  /// offset: bytes from the file's start; negative if the error has no single position.
  TraceError(const std::string& path, int64_t offset, const std::string& field, const std::string& problem)
      : Error(without_middle(path) + ": " + (offset < 0 ? "" : "at byte " + std::to_string(offset) + ": ") +
              (field.empty() ? "" : without_middle(field) + ": ") + problem),
        path_(path),
        offset_(offset),
        field_(field) {}

  const std::string& path() const { return path_; }
  int64_t offset() const { return offset_; }
  const std::string& field() const { return field_; }

 private:
  std::string path_;
  int64_t offset_;
  std::string field_;
};

/// A failed device call. The message says which call, the driver's or library's message, and the source line.
class DeviceError : public Error {
 public:
  DeviceError(const std::string& call, const std::string& message, const std::string& file, int64_t line)
      : Error(call + ": " + message + " (" + file + ":" + std::to_string(line) + ")") {}
};

/// The requested operation needs a device that this machine does not have.
class NoDevice : public Error {
 public:
  using Error::Error;
};

/// The operating system failed a request: a file that cannot be opened, a full disk, no memory.
class IoError : public Error {
 public:
  using Error::Error;
};

}  // namespace kvbound
