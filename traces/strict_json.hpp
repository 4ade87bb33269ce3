// JSON as file formats need it: no duplicate keys, no depth or number that the format has not, and for every
// value the byte where it stands.
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
  /// What safetensors has no use for: true, false, null, and numbers that are no integers in 0..2^64-1.
  struct Other {
    std::string text;
  };

  std::variant<Other, uint64_t, std::string, Array, Object> value;
  int64_t offset = 0;  ///< bytes from the file's start: of the opening bracket; else where the value ends

  const uint64_t* number() const { return std::get_if<uint64_t>(&value); }
  const std::string* text() const { return std::get_if<std::string>(&value); }
  const Array* array() const { return std::get_if<Array>(&value); }
  const Object* object() const { return std::get_if<Object>(&value); }
  /// The object's member of that name; null if there is none, or if this is no object.
  const Json* member(std::string_view name) const;
};

/// The value in a few words, for messages: `an object`, `"text"`, `-5`.
std::string description(const Json& json);

/// Reads one object. White space around it is legal, a byte order mark is not.
///
/// path    the file, for messages
/// offset  where `text` begins in the file
/// field   what `text` is, for messages
/// throws  TraceError for ill-formed JSON or UTF-8, a duplicate key, more than 3 levels, an array of
///         more than 64 items, a value that is no object
Json parse_strict_json(const std::string& path, int64_t offset, const std::string& field,
                       std::string_view text);

}  // namespace kvbound::traces
