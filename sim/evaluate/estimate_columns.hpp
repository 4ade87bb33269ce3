// A mean over tasks and its uncertainty as columns of a cube.
#pragma once

#include <optional>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>

#include "statistics.hpp"

namespace kvbound::sim {

/// Columns NAME, NAME_error, NAME_low and NAME_high: the mean, its standard error, and the ends of its
/// interval.
///
/// error, interval  whether tables show them by default, as they do the mean if it says so
std::vector<Column> estimate_columns(const Figure& mean, Shown error, Shown interval,
                                     const std::vector<std::optional<Estimate>>& estimates);

/// The ends of intervals: columns NAME_low and NAME_high.
std::vector<Column> interval_columns(const Figure& figure, Shown shown,
                                     const std::vector<std::optional<Interval>>& intervals);

}  // namespace kvbound::sim
