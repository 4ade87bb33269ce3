// How long a sweep of many items would take on many workers.
#pragma once

#include <cstdint>
#include <vector>

#include "sweep_folder.hpp"

namespace kvbound::sim {

/// Seconds of items, and of what the sweep itself adds to an item: its claim, its tries,
/// and writing its results.
struct MeasuredItems {
  std::vector<double> seconds;
  double overhead = 0;  ///< mean
};

/// Of a sweep's finished items; their overhead is measured by keeping copies of at most `copies` of them.
MeasuredItems measured_items(const SweepFolder& folder, const Sweep& sweep, int64_t copies = 50);

struct Makespan {
  int64_t workers = 1;
  double makespan = 0;  ///< seconds until the last item is done
  double bound = 0;  ///< no schedule is shorter: max(sum of costs / workers, largest cost), overhead included
};

/// A schedule of `items` items whose costs are drawn from the measured ones with replacement: the largest
/// first, each to the worker that is free first.
///
/// seed  of the draws
std::vector<Makespan> simulate(const MeasuredItems& measured, int64_t items,
                               const std::vector<int64_t>& workers, int64_t seed);

/// When the last of some items is done: the largest first, each by the worker that is free first.
double makespan(std::vector<double> costs, int64_t workers);

}  // namespace kvbound::sim
