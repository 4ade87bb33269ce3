// Numbers over the product of some axes: what the figures of a page are drawn from (data.js).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/json.hpp>

namespace kvbound::sim {

/// Columns of numbers over axes whose places are named by keys: L of each run, layer and query head.
class PageCube {
 public:
  /// Adds an axis; the last one varies fastest.
  ///
  /// keys  {name: what it says of each place}; all lists have the same length, which is the number of places
  void add_axis(Json keys);
  /// 0..count-1 as an axis of one key.
  void add_counted_axis(const std::string& key, int64_t count);
  /// Appends to a column. In the end it must have a number for each combination of places;
  /// NaN where there is none.
  void append(const std::string& column, double number) { columns_[column].push_back(number); }
  void append(const std::string& column, std::span<const double> numbers);

  /// Whether a column has a number at all.
  bool says_something(const std::string& column) const;
  int64_t rows() const;
  /// As data.js reads it: numbers in six significant digits, of a size of at most 1e75, and 0 if below 1e-75.
  Json json(const std::string& id) const;

 private:
  struct Axis {
    Json keys;
    int64_t size = 0;
  };
  std::vector<Axis> axes_;
  std::map<std::string, std::vector<double>> columns_;
};

}  // namespace kvbound::sim
