#include "json_field.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>

#include "number.hpp"

namespace kvbound::sim {
namespace {

using traces::Json;

std::optional<double> number_of(const Json& json) {
  if (const uint64_t* number = json.number()) return static_cast<double>(*number);
  const auto* other = std::get_if<Json::Other>(&json.value);
  return other ? parse_real(other->text) : std::nullopt;
}

bool is(const Json& json, std::string_view word) {
  const auto* other = std::get_if<Json::Other>(&json.value);
  return other && other->text == word;
}

}  // namespace

void JsonField::refuse(const std::string& problem) const {
  throw TraceError(*path_, json_->offset, name_, problem);
}

void JsonField::expected(const std::string& what) const {
  refuse(fmt::format("is {}; expected {}", traces::description(*json_), what));
}

JsonField JsonField::member(std::string_view name) const {
  const std::string full = (name_.empty() ? "" : name_ + ".") + std::string(name);
  if (!json_->object()) expected("an object");
  const Json* found = json_->member(name);
  if (!found) throw TraceError(*path_, json_->offset, full, "is missing");
  return {*path_, full, *found};
}

std::optional<JsonField> JsonField::optional_member(std::string_view name) const {
  if (!json_->object()) expected("an object");
  if (!json_->member(name)) return std::nullopt;
  JsonField field = member(name);
  return field.is_null() ? std::nullopt : std::optional(std::move(field));
}

JsonField JsonField::item(size_t index) const {
  return {*path_, fmt::format("{}[{}]", name_, index), (*json_->array())[index]};
}

std::vector<JsonField> JsonField::items(bool may_be_empty) const {
  if (!json_->array() || (json_->array()->empty() && !may_be_empty))
    expected(may_be_empty ? "a list" : "a list that is not empty");
  std::vector<JsonField> all;
  for (size_t i = 0; i < json_->array()->size(); ++i) all.push_back(item(i));
  return all;
}

std::string JsonField::any_text() const {
  if (!json_->text()) expected("a string");
  return *json_->text();
}

std::string JsonField::text() const {
  if (!json_->text() || json_->text()->empty()) expected("a string that is not empty");
  return *json_->text();
}

std::string JsonField::one_of(std::initializer_list<std::string_view> known) const {
  if (!json_->text() || std::ranges::find(known, *json_->text()) == known.end())
    expected(fmt::format("{}", fmt::join(known, " or ")));
  return *json_->text();
}

int64_t JsonField::integer(int64_t least, int64_t most) const {
  const uint64_t* number = json_->number();
  if (!number || *number > static_cast<uint64_t>(most) || static_cast<int64_t>(*number) < least) {
    expected(fmt::format("an integer from {} to {}", least, most));
  }
  return static_cast<int64_t>(*number);
}

bool JsonField::boolean() const {
  if (!is(*json_, "true") && !is(*json_, "false")) expected("true or false");
  return is(*json_, "true");
}

bool JsonField::is_null() const { return is(*json_, "null"); }

double JsonField::number() const {
  const auto number = number_of(*json_);
  if (!number) expected("a number");
  return *number;
}

double JsonField::number_or_nan() const {
  return is_null() ? std::numeric_limits<double>::quiet_NaN() : number();
}

double JsonField::positive() const {
  const auto number = number_of(*json_);
  if (!number || !(*number > 0)) expected("a number > 0");
  return *number;
}

std::vector<double> JsonField::numbers() const {
  if (!json_->array()) expected("a list");
  std::vector<double> all;
  for (size_t i = 0; i < json_->array()->size(); ++i) {
    const Json& json = (*json_->array())[i];
    const auto number = number_of(json);
    if (!number && !is(json, "null")) item(i).expected("a number or null");
    all.push_back(number.value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  return all;
}

std::vector<double> JsonField::numbers(int64_t count) const {
  std::vector<double> all = numbers();
  if (std::ssize(all) != count) refuse(fmt::format("has {} numbers; expected {}", all.size(), count));
  return all;
}

}  // namespace kvbound::sim
