// Structs as JSON that this program itself reads again: a struct's fields are listed once, and
// written and read by that list.
//
//     template <>
//     struct Fields<Place> {
//       static void visit(auto& place, const auto& visit) {  // of a Place or a const Place
//         visit.fixed("format", "kvbound-place");  // written, and required where it is read
//         visit("layer", place.layer);
//         visit("step", place.step);
//       }
//     };
//
// Fields may be texts, integers, numbers (also NaN and infinity, which only binary formats of JSON can
// hold), truth values, data types, optional ones, lists, maps by text and such structs, dense matrices, and
// JSON that is carried whole.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/messages.hpp>

#include "written_json.hpp"

namespace kvbound::sim {

using FieldsJson = nlohmann::ordered_json;

/// To be specialised for every struct.
template <class Struct>
struct Fields;

/// To be specialised for every type that is written as a value of another one, such as a policy as its text:
/// functions Other of(const Value&) and Value from(const Other&).
template <class Value>
struct WrittenAs;

/// A value as JSON; an absent optional one is null.
template <class Value>
FieldsJson fields_of(const Value& value);

/// Reads what fields_of wrote. Throws Error, naming the field, what it has and what is expected, for anything
/// else, JSON that was discarded as ill-formed included; fields that are not listed are ignored.
///
/// name  of the value, for messages
template <class Value>
void read_fields(const char* name, const FieldsJson& json, Value& value);

/// The same from text, within the limits of written_json.
template <class Value>
Value parse_fields(const char* name, std::string_view text, const WrittenLimits& limits = {},
                   size_t* taken = nullptr) {
  Value value;
  read_fields(name, written_json(name, text, limits, taken), value);
  return value;
}

namespace fields {

template <class Value>
concept Written = requires(const Value& value) {
  WrittenAs<Value>::of(value);
};

[[noreturn]] inline void refuse(const char* name, const FieldsJson& json, const std::string& expected) {
  if (json.is_discarded()) throw Error(std::string(name) + " is not valid JSON");
  const std::string found = json.dump(-1, ' ', false, FieldsJson::error_handler_t::replace);  // of any bytes
  throw Error(std::string(name) + " is " + traces::printable(found, 40) + "; expected " + expected);
}

inline const FieldsJson& member(const FieldsJson& json, const char* name) {
  if (!json.is_object() || !json.contains(name)) throw Error(std::string(name) + " is missing");
  return json.at(name);
}

struct Write {
  FieldsJson& json;
  template <class Value>
  void operator()(const char* name, const Value& value) const {
    json[name] = fields_of(value);
  }
  void fixed(const char* name, const FieldsJson& value) const { json[name] = value; }
};

struct Read {
  const FieldsJson& json;
  template <class Value>
  void operator()(const char* name, Value& value) const {
    read_fields(name, member(json, name), value);
  }
  void fixed(const char* name, const FieldsJson& value) const {
    if (const FieldsJson& found = member(json, name); found != value) refuse(name, found, value.dump());
  }
};

inline FieldsJson to_json(const std::string& text) { return text; }
inline FieldsJson to_json(bool truth) { return truth; }
inline FieldsJson to_json(int64_t integer) { return integer; }
inline FieldsJson to_json(double number) { return number; }
inline FieldsJson to_json(Dtype dtype) { return std::string(name(dtype)); }
inline FieldsJson to_json(const FieldsJson& json) { return json; }

template <class Value>
FieldsJson to_json(const std::optional<Value>& value) {
  return value ? fields_of(*value) : FieldsJson();
}
template <class Value>
FieldsJson to_json(const std::vector<Value>& list) {
  FieldsJson json = FieldsJson::array();
  for (const Value& value : list) json.push_back(fields_of(value));
  return json;
}
template <class Value>
FieldsJson to_json(const std::map<std::string, Value>& map) {
  FieldsJson json = FieldsJson::object();
  for (const auto& [name, value] : map) json[name] = fields_of(value);
  return json;
}
inline FieldsJson to_json(const Matrix& matrix) {
  const VectorView numbers = matrix.numbers();
  return {{"rows", matrix.rows()},
          {"cols", matrix.cols()},
          {"numbers", std::vector<double>(numbers.begin(), numbers.end())}};
}
template <Written Value>
FieldsJson to_json(const Value& value) {
  return fields_of(WrittenAs<Value>::of(value));
}
template <class Struct>
requires(std::is_class_v<Struct> && !Written<Struct>) FieldsJson to_json(const Struct& figures) {
  FieldsJson json = FieldsJson::object();
  Fields<Struct>::visit(figures, Write{json});
  return json;
}

inline void read(const char* name, const FieldsJson& json, std::string& text) {
  if (!json.is_string()) refuse(name, json, "a text");
  text = json.get<std::string>();
}
inline void read(const char* name, const FieldsJson& json, bool& truth) {
  if (!json.is_boolean()) refuse(name, json, "true or false");
  truth = json.get<bool>();
}
inline void read(const char* name, const FieldsJson& json, int64_t& integer) {
  const bool small =
      json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!small) refuse(name, json, "an integer");
  integer = json.get<int64_t>();
}
inline void read(const char* name, const FieldsJson& json, double& number) {
  if (!json.is_number()) refuse(name, json, "a number");
  number = json.get<double>();
}
inline void read(const char* name, const FieldsJson& json, Dtype& dtype) {
  const auto named = json.is_string() ? dtype_named(json.get_ref<const std::string&>()) : std::nullopt;
  if (!named) refuse(name, json, "a data type");
  dtype = *named;
}
inline void read(const char*, const FieldsJson& json, FieldsJson& whole) { whole = json; }
template <class Value>
void read(const char* name, const FieldsJson& json, std::optional<Value>& value) {
  value.reset();
  if (!json.is_null()) read_fields(name, json, value.emplace());
}
template <class Value>
void read(const char* name, const FieldsJson& json, std::vector<Value>& list) {
  if (!json.is_array()) refuse(name, json, "a list");
  list.clear();
  list.reserve(json.size());
  for (const FieldsJson& item : json) read_fields(name, item, list.emplace_back());
}
template <class Value>
void read(const char* name, const FieldsJson& json, std::map<std::string, Value>& map) {
  if (!json.is_object()) refuse(name, json, "an object");
  map.clear();
  for (const auto& [key, value] : json.items()) read_fields(traces::printable(key).c_str(), value, map[key]);
}
inline void read(const char* name, const FieldsJson& json, Matrix& matrix) {
  int64_t rows = 0, cols = 0;
  std::vector<double> list;
  const Read member{json};
  member("rows", rows);
  member("cols", cols);
  member("numbers", list);
  if (rows < 0 || cols < 0 || (cols > 0 && rows > std::ssize(list) / cols) || rows * cols != std::ssize(list))
    refuse(name, json, "a matrix of rows times cols numbers");
  matrix = Matrix(rows, cols);
  std::ranges::copy(list, matrix.data());
}
template <Written Value>
void read(const char* name, const FieldsJson& json, Value& value) {
  std::decay_t<decltype(WrittenAs<Value>::of(value))> other;
  read_fields(name, json, other);
  value = WrittenAs<Value>::from(other);
}
template <class Struct>
requires(std::is_class_v<Struct> && !Written<Struct>) void read(const char* name, const FieldsJson& json,
                                                                Struct& figures) {
  if (!json.is_object()) refuse(name, json, "an object");
  Fields<Struct>::visit(figures, Read{json});
}

}  // namespace fields

template <class Value>
FieldsJson fields_of(const Value& value) {
  return fields::to_json(value);
}

template <class Value>
void read_fields(const char* name, const FieldsJson& json, Value& value) {
  fields::read(name, json, value);
}

}  // namespace kvbound::sim
