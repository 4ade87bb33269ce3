// JSON for file formats: no duplicate keys, limited depth and types of values, and the
// byte offset of every value.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvbound::traces {

struct Json {
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;
  /// Values that safetensors does not use: true, false, null, and numbers that are not integers in 0..2^64-1.
  struct Other {
    std::string text;
  };

  std::variant<Other, uint64_t, std::string, Array, Object> value;
  /// Bytes from the file's start: of an opening bracket, or of the end of any other value.
  int64_t offset = 0;

  const uint64_t* number() const { return std::get_if<uint64_t>(&value); }
  const std::string* text() const { return std::get_if<std::string>(&value); }
  const Array* array() const { return std::get_if<Array>(&value); }
  const Object* object() const { return std::get_if<Object>(&value); }
  /// The object's member of that name; null if there is none, or if this is not an object.
  const Json* member(std::string_view name) const;
};

/// A short description of a value for messages: `an object`, `"text"`, `-5`.
std::string description(const Json& json);

/// How deeply objects and arrays may be nested, how many items an array may have, how much memory all
/// values may take, which is up to 70 times the text's bytes, and whether NaN, Infinity and -Infinity are
/// numbers, as Python writes them.
struct JsonLimits {
  size_t levels = 3;
  size_t items = 64;
  size_t bytes = size_t{1} << 30;
  bool python = false;
  size_t* taken = nullptr;  ///< if given, what values take is added to it, and the limit is one of the sum
};

/// Parses one object. White space around it is legal, a byte order mark is not.
///
/// path    the file, for messages
/// offset  where `text` begins in the file
/// field   name of `text` in messages
/// throws  TraceError for ill-formed JSON or UTF-8, a duplicate key, more levels, items or bytes than the
///         limits, or a value that is not an object
Json parse_strict_json(const std::string& path, int64_t offset, const std::string& field,
                       std::string_view text, const JsonLimits& limits = {});

}  // namespace kvbound::traces
