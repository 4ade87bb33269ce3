// A mean over tasks and its uncertainty as columns of a cube.
#pragma once

#include <optional>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>

#include "statistics.hpp"

namespace kvbound::sim {

/// Columns NAME, NAME_error, NAME_low and NAME_high: the mean, its standard error, and
/// the ends of its interval.
class EstimateColumns {
 public:
  /// error, interval  whether tables show them by default, as they do the mean if it says so
  EstimateColumns(const Figure& mean, Shown error, Shown interval);

  void add(const std::optional<Estimate>& estimate);
  /// Moves the columns behind others.
  void append_to(std::vector<Column>& columns) &&;

 private:
  std::vector<Column> columns_;  // mean, error, low, high
};

/// The ends of an interval: columns NAME_low and NAME_high.
std::vector<Column> interval_columns(const Figure& figure, Shown shown);
/// low, high  of interval_columns
void add_interval(Column& low, Column& high, const std::optional<Interval>& interval);

}  // namespace kvbound::sim
