// Values of a JSON file that another program wrote, and errors that name them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/traces/strict_json.hpp>

namespace kvbound::sim {

/// A value of a file. What it is not makes a TraceError with the file's path, the value's offset and its name, such as
/// `runs[2].policy`. The path and the JSON must outlive it.
class JsonField {
 public:
  JsonField(const std::string& path, std::string name, const traces::Json& json)
      : path_(&path), name_(std::move(name)), json_(&json) {}

  const std::string& path() const { return *path_; }
  [[noreturn]] void refuse(const std::string& problem) const;

  /// The object's member of that name, which must be there.
  JsonField member(std::string_view name) const;
  /// The member, unless it is missing or null.
  std::optional<JsonField> optional_member(std::string_view name) const;
  /// The items of a list; an empty one is refused unless it may be empty.
  std::vector<JsonField> items(bool may_be_empty = false) const;

  /// A string, which may be empty; of text, one that is not.
  std::string any_text() const;
  std::string text() const;
  std::string one_of(std::initializer_list<std::string_view> known) const;
  int64_t integer(int64_t least = 0, int64_t most = INT64_MAX) const;
  bool boolean() const;
  bool is_null() const;
  /// A finite number; of number_or_nan, null as NaN.
  double number() const;
  double number_or_nan() const;
  double positive() const;
  /// A list of numbers, null as NaN.
  std::vector<double> numbers() const;
  /// The same of so many numbers.
  std::vector<double> numbers(int64_t count) const;

 private:
  [[noreturn]] void expected(const std::string& what) const;
  JsonField item(size_t index) const;

  const std::string* path_;
  std::string name_;
  const traces::Json* json_;
};

}  // namespace kvbound::sim
