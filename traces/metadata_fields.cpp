#include "metadata_fields.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/error.hpp>

#include "messages.hpp"
#include "number_in.hpp"

namespace kvbound::traces {

const std::string& MetadataFields::text(const std::string& field) const {
  const auto found = metadata_.strings.find(field);
  if (found == metadata_.strings.end()) fail(field, "is missing");
  return found->second;
}

void MetadataFields::require(const std::string& field, const std::string& expected) const {
  if (text(field) != expected) refuse(field, in_quotes(expected));
}

int64_t MetadataFields::count(const std::string& field, int64_t least, int64_t most) const {
  const auto number = number_in<int64_t>(text(field));
  if (!number || *number < least || *number > most || std::to_string(*number) != text(field)) {
    refuse(field, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return *number;
}

double MetadataFields::positive(const std::string& field) const {
  const auto number = number_in<double>(text(field));
  if (!number || !std::isfinite(*number) || !(*number > 0)) refuse(field, "a positive decimal number");
  return *number;
}

double MetadataFields::not_negative(const std::string& field) const {
  const auto number = number_in<double>(text(field));
  if (!number || !std::isfinite(*number) || *number < 0) refuse(field, "a decimal number, 0 or more");
  return *number;
}

bool MetadataFields::boolean(const std::string& field) const {
  const std::string& value = text(field);
  if (value == "true" || value == "True" || value == "1") return true;
  if (value != "false" && value != "False" && value != "0") refuse(field, "true or false");
  return false;
}

Dtype MetadataFields::dtype(const std::string& field, std::span<const Dtype> allowed) const {
  const auto named = dtype_named(text(field));
  if (named && std::ranges::find(allowed, *named) != allowed.end()) return *named;
  std::string known;
  for (const Dtype type : allowed) known += (known.empty() ? "" : ", ") + std::string(name(type));
  refuse(field, "one of " + known);
}

void MetadataFields::fail(const std::string& field, const std::string& problem) const {
  throw TraceError(metadata_.path, metadata_.offset, "__metadata__." + field, problem);
}

void MetadataFields::refuse(const std::string& field, const std::string& expected) const {
  fail(field, "is " + in_quotes(text(field)) + "; expected " + expected);
}

}  // namespace kvbound::traces
