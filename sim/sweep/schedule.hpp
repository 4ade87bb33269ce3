// Which items of a sweep are still to be computed, and in which order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costs.hpp"
#include "sweep_folder.hpp"

namespace kvbound::sim {

/// An item, or those of its runs that have no results yet.
struct PlannedItem {
  int64_t number = 0;  ///< of the item in items_of(sweep)
  SweepItem item;
  std::string file;  ///< of its results
  double cost = 0;   ///< ItemCosts::of
  bool done = false;
};

/// All items, those of the largest cost first (ties: the smaller number). A part of an item is planned if a
/// sweep of other policies or budgets computed the rest of its runs in the same folder.
std::vector<PlannedItem> schedule(const SweepFolder& folder, const Sweep& sweep, const CostRates& rates);

}  // namespace kvbound::sim
