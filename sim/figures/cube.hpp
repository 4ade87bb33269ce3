// Results as cubes: columns of figures over the product of some axes, such as L of each
// run, layer and query head.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "figure.hpp"

namespace kvbound::sim {

/// What a column has where there is no number.
inline constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// A figure's numbers, or texts, one for each row of a cube or each place of an axis.
struct Column {
  Figure figure;
  std::variant<std::vector<double>, std::vector<std::string>> values = std::vector<double>();

  bool is_text() const { return values.index() == 1; }
  std::vector<double>& numbers() { return std::get<0>(values); }
  const std::vector<double>& numbers() const { return std::get<0>(values); }
  std::vector<std::string>& texts() { return std::get<1>(values); }
  const std::vector<std::string>& texts() const { return std::get<1>(values); }
  int64_t size() const;
  /// Whether some number is not NaN, or some text is not empty.
  bool says_something() const;
  /// As JSON and CSV, or a table, has it; an absent one is empty, in a table "-".
  std::string text(int64_t row) const;
  std::string cell(int64_t row) const;
};

Column number_column(Figure figure, std::vector<double> numbers = {});
Column text_column(Figure figure, std::vector<std::string> texts = {});

/// Places, each with a value of every key: runs by policy, budget and backend; layers by number.
struct Axis {
  std::string name;
  std::vector<Column> keys;  ///< at least one; all of the same size

  int64_t size() const { return keys.front().size(); }
};
using SharedAxis = std::shared_ptr<const Axis>;

SharedAxis axis(std::string name, std::vector<Column> keys);
/// 0..count-1, named by that key.
SharedAxis counted_axis(std::string name, Figure key, int64_t count);

/// Columns over the product of axes, of which the last varies fastest.
struct Cube {
  std::string name;
  std::vector<SharedAxis> axes;
  std::vector<Column> columns;  ///< each of rows() values
  bool is_detail = false;       ///< too many numbers for JSON: in CSV alone

  int64_t rows() const;
  /// The place on axis `a` that a row is at.
  int64_t place(int64_t row, size_t a) const;
  /// Null if there is no such column.
  const Column* find(std::string_view column) const;
  bool says_something() const;
};

/// What a command found out about one subject, such as a trace: facts of the whole, and cubes.
struct Part {
  nlohmann::ordered_json facts;
  std::vector<Cube> cubes;
  std::vector<std::string> rows = {};  ///< the cubes whose rows CSV has
  std::vector<Column> subject = {};    ///< what those begin with; one value each

  /// Null if there is no such cube.
  const Cube* find(std::string_view cube) const;
};

}  // namespace kvbound::sim
