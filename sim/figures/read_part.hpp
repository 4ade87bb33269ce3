// Parts of documents, read back from files that anybody may have changed since.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include <kvbound/traces/json_field.hpp>

#include "cube.hpp"

namespace kvbound::sim {

/// The most places of an axis, and the most numbers of a document's cube.
inline constexpr int64_t kMostPlaces = 1'000'000;
inline constexpr int64_t kMostNumbers = 20'000'000;

/// A part of a document. Its figures have names alone.
struct ReadPart {
  traces::JsonField facts, cubes_field;
  std::vector<Cube> cubes;

  /// Null if there is no such cube.
  const Cube* find(std::string_view cube) const;
  /// Throws TraceError if there is no such cube.
  const Cube& cube(std::string_view name) const;
  /// Throws TraceError, too, if it does not have these axes, each with a place.
  const Cube& cube(std::string_view name, std::initializer_list<std::string_view> axes) const;
};

/// part    an item of the document's `parts`; what it refers to must outlive the result
/// throws  TraceError, naming the field, for a cube of unknown axes, columns of another size, or
///         more numbers than the limits
ReadPart read_part(const traces::JsonField& part);

/// The texts of a key of an axis, or its numbers. Throws TraceError if the axis has no such
/// key, or of another kind.
const std::vector<std::string>& texts_of(const ReadPart& part, const Axis& axis, std::string_view key);
const std::vector<double>& numbers_of(const ReadPart& part, const Axis& axis, std::string_view key);
/// A key's numbers, all of which must be integers.
std::vector<int64_t> integers_of(const ReadPart& part, const Axis& axis, std::string_view key);

/// A column's numbers; all undefined if the cube has no such numbers.
std::vector<double> numbers_or_none(const Cube& cube, std::string_view column);

}  // namespace kvbound::sim
