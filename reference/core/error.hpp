// What can go wrong, by whose fault: the caller's (ShapeMismatch, NonFinite, InvalidPolicy), the input's
// (TraceError), a device's (DeviceError) or the world's (IoError). Every message names the values that are wrong.
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

/// An argument that holds NaN or infinity where only numbers have a meaning.
class NonFinite : public Error {
 public:
  using Error::Error;
};

/// A policy, option or budget that is unknown, out of range, or without meaning for the layer at hand.
class InvalidPolicy : public Error {
 public:
  using Error::Error;
};

/// A file that is not what it claims to be: which file, where in it, which field, what was expected.
class TraceError : public Error {
 public:
  /// offset: bytes from the file's start; negative where no single place is to blame.
  TraceError(const std::string& path, int64_t offset, const std::string& field, const std::string& problem)
      : Error(path + ": " + (offset < 0 ? "" : "at byte " + std::to_string(offset) + ": ") +
              (field.empty() ? "" : field + ": ") + problem),
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

/// A device that is not there, or that refused: which call, what it said, where in our source.
class DeviceError : public Error {
 public:
  DeviceError(const std::string& call, const std::string& message, const std::string& file, int64_t line)
      : Error(call + ": " + message + " (" + file + ":" + std::to_string(line) + ")") {}
};

/// What was asked for needs a device that this machine does not have.
class NoDevice : public Error {
 public:
  using Error::Error;
};

/// The world refused: a file that cannot be opened, a full disk, no memory.
class IoError : public Error {
 public:
  using Error::Error;
};

}  // namespace kvbound
