// Structs as JSON: a struct's fields are listed once, and written and read by that list.
//
//     template <>
//     struct Fields<Place> {
//       static void visit(auto& place, const auto& visit) {  // of a Place or a const Place
//         visit("layer", place.layer);
//         visit("step", place.step);
//       }
//     };
//
// Fields may be texts, integers, numbers, truth values, data types, optional ones, lists and such structs, and dense matrices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

using FieldsJson = nlohmann::ordered_json;

/// Which real numbers are expected where JSON is read: those of any kind, NaN and infinity included (which only binary
/// formats of JSON can hold), or finite ones that are not negative.
enum class Numbers { any, nonnegative };

/// To be specialised for every struct.
template <class Struct>
struct Fields;

/// A value as JSON; an absent optional one is null.
template <class Value>
FieldsJson fields_of(const Value& value);

/// Reads what fields_of wrote. Throws Error, naming the field, what it has and what is expected, for anything else; fields
/// that are not listed are ignored.
///
/// name  of the value, for messages
template <class Value>
void read_fields(const char* name, const FieldsJson& json, Numbers numbers, Value& value);

namespace fields {

[[noreturn]] inline void refuse(const char* name, const FieldsJson& json, const char* expected) {
  throw Error(std::string(name) + " is " + traces::printable(json.dump(), 40) + "; expected " + expected);
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
};

struct Read {
  const FieldsJson& json;
  Numbers numbers;
  template <class Value>
  void operator()(const char* name, Value& value) const {
    read_fields(name, member(json, name), numbers, value);
  }
};

inline FieldsJson to_json(const std::string& text) { return text; }
inline FieldsJson to_json(bool truth) { return truth; }
inline FieldsJson to_json(int64_t integer) { return integer; }
inline FieldsJson to_json(double number) { return number; }
inline FieldsJson to_json(Dtype dtype) { return std::string(name(dtype)); }

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
inline FieldsJson to_json(const Matrix& matrix) {
  const VectorView numbers = matrix.numbers();
  return {{"rows", matrix.rows()},
          {"cols", matrix.cols()},
          {"numbers", std::vector<double>(numbers.begin(), numbers.end())}};
}
template <class Struct>
requires std::is_class_v<Struct> FieldsJson to_json(const Struct& figures) {
  FieldsJson json = FieldsJson::object();
  Fields<Struct>::visit(figures, Write{json});
  return json;
}

inline void read(const char* name, const FieldsJson& json, Numbers, std::string& text) {
  if (!json.is_string()) refuse(name, json, "a text");
  text = json.get<std::string>();
}
inline void read(const char* name, const FieldsJson& json, Numbers, bool& truth) {
  if (!json.is_boolean()) refuse(name, json, "true or false");
  truth = json.get<bool>();
}
inline void read(const char* name, const FieldsJson& json, Numbers numbers, int64_t& integer) {
  const bool small =
      json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!small || (numbers == Numbers::nonnegative && json < 0)) {
    refuse(name, json, numbers == Numbers::nonnegative ? "an integer >= 0" : "an integer");
  }
  integer = json.get<int64_t>();
}
inline void read(const char* name, const FieldsJson& json, Numbers numbers, double& number) {
  const bool valid =
      json.is_number() && (numbers == Numbers::any || (std::isfinite(json.get<double>()) && json >= 0));
  if (!valid) refuse(name, json, numbers == Numbers::nonnegative ? "a number >= 0" : "a number");
  number = json.get<double>();
}
inline void read(const char* name, const FieldsJson& json, Numbers, Dtype& dtype) {
  const auto named = json.is_string() ? dtype_named(json.get_ref<const std::string&>()) : std::nullopt;
  if (!named) refuse(name, json, "a data type");
  dtype = *named;
}
template <class Value>
void read(const char* name, const FieldsJson& json, Numbers numbers, std::optional<Value>& value) {
  value.reset();
  if (!json.is_null()) read_fields(name, json, numbers, value.emplace());
}
template <class Value>
void read(const char* name, const FieldsJson& json, Numbers numbers, std::vector<Value>& list) {
  if (!json.is_array()) refuse(name, json, "a list");
  list.clear();
  list.reserve(json.size());
  for (const FieldsJson& item : json) read_fields(name, item, numbers, list.emplace_back());
}
inline void read(const char* name, const FieldsJson& json, Numbers numbers, Matrix& matrix) {
  int64_t rows = 0, cols = 0;
  std::vector<double> list;
  const Read member{json, numbers};
  member("rows", rows);
  member("cols", cols);
  member("numbers", list);
  if (rows < 0 || cols < 0 || (cols > 0 && rows > std::ssize(list) / cols) || rows * cols != std::ssize(list))
    refuse(name, json, "a matrix of rows times cols numbers");
  matrix = Matrix(rows, cols);
  std::ranges::copy(list, matrix.data());
}
template <class Struct>
requires std::is_class_v<Struct>
void read(const char* name, const FieldsJson& json, Numbers numbers, Struct& figures) {
  if (!json.is_object()) refuse(name, json, "an object");
  Fields<Struct>::visit(figures, Read{json, numbers});
}

}  // namespace fields

template <class Value>
FieldsJson fields_of(const Value& value) {
  return fields::to_json(value);
}

template <class Value>
void read_fields(const char* name, const FieldsJson& json, Numbers numbers, Value& value) {
  fields::read(name, json, numbers, value);
}

}  // namespace kvbound::sim
