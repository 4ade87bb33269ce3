#include "read_part.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvbound::sim {
namespace {

using traces::JsonField;

constexpr double kLargestInteger = 1e15;

Column read_column(const std::string& name, const JsonField& values) {
  Figure figure = number_figure(name, "");
  if (!values.has_texts()) return number_column(std::move(figure), values.numbers_or_nan());
  return text_column(std::move(figure), values.texts_or_empty());
}

SharedAxis read_axis(const std::string& name, const JsonField& field) {
  std::vector<Column> keys;
  for (const auto& [key, values] : field.members()) {
    keys.push_back(read_column(key, values));
    if (keys.back().size() != keys.front().size() || keys.back().size() > kMostPlaces)
      values.refuse(fmt::format("has {} places; expected {}", keys.back().size(),
                                std::min(keys.front().size(), kMostPlaces)));
  }
  if (keys.empty()) field.refuse("has no key");
  return axis(name, std::move(keys));
}

Cube read_cube(const std::string& name, const JsonField& field,
               const std::map<std::string, SharedAxis>& axes) {
  Cube cube{name, {}, {}};
  int64_t rows = 1;
  for (const JsonField& axis : field.member("axes").items(true)) {
    const auto found = axes.find(axis.text());
    if (found == axes.end()) axis.refuse("names no axis of its part");
    cube.axes.push_back(found->second);
    const int64_t size = found->second->size();
    if (size > 0 && rows > kMostNumbers / size)
      axis.refuse(fmt::format("makes more than {} rows", kMostNumbers));
    rows *= size;
  }
  for (const auto& [column, values] : field.member("columns").members()) {
    cube.columns.push_back(read_column(column, values));
    if (cube.columns.back().size() != rows)
      values.refuse(fmt::format("has {} values; expected {}", cube.columns.back().size(), rows));
  }
  return cube;
}

const Column& key_of(const ReadPart& part, const Axis& axis, std::string_view key, bool is_text) {
  const auto found =
      std::ranges::find_if(axis.keys, [&](const Column& one) { return one.figure.name == key; });
  if (found == axis.keys.end())
    part.cubes_field.refuse(fmt::format("have an axis {} without a key {}", axis.name, key));
  if (found->is_text() != is_text)
    part.cubes_field.refuse(
        fmt::format("have an axis {} whose key {} has no {}", axis.name, key, is_text ? "texts" : "numbers"));
  return *found;
}

}  // namespace

const Cube* ReadPart::find(std::string_view cube) const {
  const auto found = std::ranges::find_if(cubes, [&](const Cube& one) { return one.name == cube; });
  return found == cubes.end() ? nullptr : &*found;
}

const Cube& ReadPart::cube(std::string_view name) const {
  const Cube* const found = find(name);
  if (!found) cubes_field.refuse(fmt::format("have no {}", name));
  return *found;
}

const Cube& ReadPart::cube(std::string_view name, std::initializer_list<std::string_view> axes) const {
  const Cube& found = cube(name);
  if (found.rows() == 0 || !std::ranges::equal(found.axes, axes, {}, [](const SharedAxis& axis) {
        return std::string_view(axis->name);
      }))
    cubes_field.member(std::string(name))
        .refuse(fmt::format("expected the axes {}, with places", fmt::join(axes, ", ")));
  return found;
}

ReadPart read_part(const JsonField& part) {
  std::map<std::string, SharedAxis> axes;
  for (const auto& [name, field] : part.member("axes").members()) axes[name] = read_axis(name, field);
  ReadPart read{part.member("facts"), part.member("cubes"), {}};
  for (const auto& [name, field] : read.cubes_field.members())
    read.cubes.push_back(read_cube(name, field, axes));
  return read;
}

const std::vector<std::string>& texts_of(const ReadPart& part, const Axis& axis, std::string_view key) {
  return key_of(part, axis, key, true).texts();
}

const std::vector<double>& numbers_of(const ReadPart& part, const Axis& axis, std::string_view key) {
  return key_of(part, axis, key, false).numbers();
}

std::vector<int64_t> integers_of(const ReadPart& part, const Axis& axis, std::string_view key) {
  std::vector<int64_t> integers;
  for (const double number : numbers_of(part, axis, key)) {
    if (!(std::abs(number) <= kLargestInteger) || number != std::trunc(number))
      part.cubes_field.refuse(fmt::format("have an axis {} whose key {} is no integer", axis.name, key));
    integers.push_back(static_cast<int64_t>(number));
  }
  return integers;
}

std::vector<double> numbers_or_none(const Cube& cube, std::string_view column) {
  const Column* const found = cube.find(column);
  if (found && !found->is_text()) return found->numbers();
  return std::vector<double>(static_cast<size_t>(cube.rows()), kUndefined);
}

}  // namespace kvbound::sim
