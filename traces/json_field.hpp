// Values of a JSON file that a person or another program wrote, and errors that name them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strict_json.hpp"

namespace kvbound::traces {

/// A value of a file. What it is not makes a TraceError with the file's path, the value's offset and its
/// name, such as `runs[2].policy`. The path and the JSON must outlive it.
class JsonField {
 public:
  /// name   of the value: of a file's root, none
  /// joint  between it and its members' names
  JsonField(const std::string& path, std::string name, const Json& json, const char* joint = ".")
      : path_(&path), name_(std::move(name)), json_(&json), joint_(joint) {}

  const std::string& path() const { return *path_; }
  int64_t offset() const { return json_->offset; }
  std::string description() const { return traces::description(*json_); }
  [[noreturn]] void refuse(const std::string& problem) const;
  /// "is 3; expected WHAT".
  [[noreturn]] void expected(const std::string& what) const;

  /// The object's member of that name, which must be there.
  JsonField member(std::string_view name) const;
  /// The member, unless it is missing; of optional_member, unless it is missing or null.
  std::optional<JsonField> find(std::string_view name) const;
  std::optional<JsonField> optional_member(std::string_view name) const;
  /// All members of an object, with their names.
  std::vector<std::pair<std::string, JsonField>> members() const;
  /// Refuses an object with members that are not among the known ones; `object` says what it is: "a plan".
  void require_known(std::span<const std::string_view> known, const char* object) const;

  /// The items of a list; an empty one is refused unless it may be empty.
  std::vector<JsonField> items(bool may_be_empty = false) const;
  /// The values of an object or a list that are objects or lists, in the order of the
  /// file; of other values, none.
  std::vector<JsonField> structured_parts() const;

  /// A string, which may be empty; of text, one that is not.
  std::string any_text() const;
  std::string text() const;
  std::string one_of(std::initializer_list<std::string_view> known) const;
  /// what  the integer is, for messages
  int64_t integer(int64_t least = 0, int64_t most = INT64_MAX, const char* what = "an integer") const;
  bool boolean() const;
  bool is_null() const;
  bool is_text() const { return json_->text(); }
  bool is_list() const { return json_->array(); }
  bool is_object() const { return json_->object(); }
  /// A finite number; of number_or_nan, null as NaN.
  double number() const;
  double number_or_nan() const;
  double number(int64_t least, int64_t most) const;
  double positive() const;

  /// Lists, which may be empty.
  std::vector<int64_t> integers(int64_t least = 0, int64_t most = INT64_MAX,
                                const char* what = "an integer") const;
  std::vector<double> numbers() const;
  /// Null is NaN.
  std::vector<double> numbers_or_nan() const;
  /// The same of so many numbers.
  std::vector<double> numbers_or_nan(int64_t count) const;
  /// Whether the list has a string in it.
  bool has_texts() const;
  /// Strings; null is an empty one.
  std::vector<std::string> texts_or_empty() const;

 private:
  JsonField item(size_t index) const;
  // The member of a name that need not be printable.
  JsonField member(std::string_view name, const Json& json) const;
  // What read(json) returns for every item; an item for which it returns none is refused.
  template <class Value, class Read>
  std::vector<Value> list_of(const std::string& what, const Read& read) const;

  const std::string* path_;
  std::string name_;
  const Json* json_;
  const char* joint_;
};

}  // namespace kvbound::traces
