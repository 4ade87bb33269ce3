#include "json_field.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/core/error.hpp>

#include "messages.hpp"
#include "number_in.hpp"

namespace kvbound::traces {
namespace {

std::optional<double> number_of(const Json& json) {
  if (const uint64_t* number = json.number()) return static_cast<double>(*number);
  const auto* other = std::get_if<Json::Other>(&json.value);
  const auto number = other ? number_in<double>(other->text) : std::nullopt;
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<int64_t> integer_of(const Json& json, int64_t least, int64_t most) {
  const uint64_t* number = json.number();
  if (!number || *number > static_cast<uint64_t>(most) || static_cast<int64_t>(*number) < least)
    return std::nullopt;
  return static_cast<int64_t>(*number);
}

bool is(const Json& json, std::string_view word) {
  const auto* other = std::get_if<Json::Other>(&json.value);
  return other && other->text == word;
}

template <class Texts>
std::string joined(const Texts& texts, const char* between) {
  std::string all;
  for (const std::string_view text : texts) all += (all.empty() ? "" : between) + std::string(text);
  return all;
}

std::string from_to(const char* what, int64_t least, int64_t most) {
  return std::string(what) + " from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

void JsonField::refuse(const std::string& problem) const {
  throw TraceError(*path_, json_->offset, name_, problem);
}

void JsonField::expected(const std::string& what) const {
  refuse("is " + description() + "; expected " + what);
}

JsonField JsonField::member(std::string_view name, const Json& json) const {
  return {*path_, (name_.empty() ? "" : name_ + joint_) + printable(name), json};
}

JsonField JsonField::member(std::string_view name) const {
  if (auto found = find(name)) return *std::move(found);
  member(name, *json_).refuse("is missing");
}

std::optional<JsonField> JsonField::find(std::string_view name) const {
  if (!is_object()) expected("an object");
  const Json* found = json_->member(name);
  return found ? std::optional(member(name, *found)) : std::nullopt;
}

std::optional<JsonField> JsonField::optional_member(std::string_view name) const {
  std::optional<JsonField> field = find(name);
  return field && field->is_null() ? std::nullopt : field;
}

std::vector<std::pair<std::string, JsonField>> JsonField::members() const {
  if (!is_object()) expected("an object");
  std::vector<std::pair<std::string, JsonField>> all;
  for (const auto& [name, json] : *json_->object()) all.emplace_back(name, member(name, json));
  return all;
}

void JsonField::require_known(std::span<const std::string_view> known, const char* object) const {
  if (!is_object()) expected("an object");
  for (const auto& [name, json] : *json_->object()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw TraceError(*path_, json.offset, name_,
                     "member " + in_quotes(name) + " is unknown; the members of " + object + " are " +
                         joined(known, ", "));
  }
}

JsonField JsonField::item(size_t index) const {
  return {*path_, name_ + "[" + std::to_string(index) + "]", (*json_->array())[index]};
}

std::vector<JsonField> JsonField::items(bool may_be_empty) const {
  if (!is_list() || (json_->array()->empty() && !may_be_empty))
    expected(may_be_empty ? "a list" : "a list that is not empty");
  std::vector<JsonField> all;
  for (size_t i = 0; i < json_->array()->size(); ++i) all.push_back(item(i));
  return all;
}

std::vector<JsonField> JsonField::structured_parts() const {
  const auto is_structured = [](const Json& json) { return json.object() || json.array(); };
  std::vector<JsonField> parts;
  if (is_object()) {
    for (const auto& [name, json] : *json_->object())
      if (is_structured(json)) parts.push_back(member(name, json));
  }
  for (size_t i = 0; is_list() && i < json_->array()->size(); ++i)
    if (is_structured((*json_->array())[i])) parts.push_back(item(i));
  std::ranges::sort(parts, {}, &JsonField::offset);
  return parts;
}

std::string JsonField::any_text() const {
  if (!is_text()) expected("a string");
  return *json_->text();
}

std::string JsonField::text() const {
  if (!is_text() || json_->text()->empty()) expected("a string that is not empty");
  return *json_->text();
}

std::string JsonField::one_of(std::initializer_list<std::string_view> known) const {
  if (!is_text() || std::ranges::find(known, *json_->text()) == known.end()) expected(joined(known, " or "));
  return *json_->text();
}

int64_t JsonField::integer(int64_t least, int64_t most, const char* what) const {
  const auto number = integer_of(*json_, least, most);
  if (!number) expected(from_to(what, least, most));
  return *number;
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

double JsonField::number(int64_t least, int64_t most) const {
  const auto number = number_of(*json_);
  if (!number || *number < static_cast<double>(least) || *number > static_cast<double>(most))
    expected(from_to("a number", least, most));
  return *number;
}

template <class Value, class Read>
std::vector<Value> JsonField::list_of(const std::string& what, const Read& read) const {
  if (!is_list()) expected("a list");
  std::vector<Value> all;
  all.reserve(json_->array()->size());
  for (const Json& json : *json_->array()) {
    const std::optional<Value> value = read(json);
    if (!value) item(all.size()).expected(what);
    all.push_back(*value);
  }
  return all;
}

std::vector<int64_t> JsonField::integers(int64_t least, int64_t most, const char* what) const {
  return list_of<int64_t>(from_to(what, least, most),
                          [&](const Json& json) { return integer_of(json, least, most); });
}

std::vector<double> JsonField::numbers() const { return list_of<double>("a number", number_of); }

std::vector<double> JsonField::numbers_or_nan() const {
  return list_of<double>("a number or null", [](const Json& json) {
    return is(json, "null") ? std::numeric_limits<double>::quiet_NaN() : number_of(json);
  });
}

std::vector<double> JsonField::numbers_or_nan(int64_t count) const {
  std::vector<double> all = numbers_or_nan();
  if (std::ssize(all) != count)
    refuse("has " + std::to_string(all.size()) + " numbers; expected " + std::to_string(count));
  return all;
}

bool JsonField::has_texts() const {
  if (!is_list()) expected("a list");
  return std::ranges::any_of(*json_->array(), [](const Json& json) { return json.text() != nullptr; });
}

std::vector<std::string> JsonField::texts_or_empty() const {
  return list_of<std::string>("a string or null", [](const Json& json) {
    if (is(json, "null")) return std::optional<std::string>("");
    return json.text() ? std::optional(*json.text()) : std::nullopt;
  });
}

}  // namespace kvbound::traces
