// What items cost: tokens times query heads times runs, at rates that finished items had.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sweep_folder.hpp"

namespace kvbound::sim {

/// Seconds per token and query head of a layer. Without any measurement all runs cost 1, which is then
/// no time but orders items.
struct CostRates {
  std::map<std::string, double> runs;  ///< by key_of(Run): compressing the prompt and taking the steps
  double other = 0;                    ///< per run: reading, and measuring
  int64_t measured = 0;                ///< items that they were measured on

  bool known() const { return measured > 0; }
};

/// What the items of a sweep cost at some rates.
class ItemCosts {
 public:
  /// sweep  outlives the object
  ItemCosts(const CostRates& rates, const Sweep& sweep);
  /// Seconds; in units of its own if the rates are not known.
  double of(const SweepItem& item) const;

 private:
  const Sweep& sweep_;
  std::vector<double> runs_;  // [runs]: per token and query head of a layer
};

/// The rates of finished items of a sweep: of at most `most` of them, spread over the folder.
CostRates measured_rates(const SweepFolder& folder, const Sweep& sweep, int64_t most = 100);

/// Keeps them in the folder, for the workers; and those that are kept, which may be unknown.
void keep_rates(const SweepFolder& folder, const CostRates& rates);
CostRates kept_rates(const SweepFolder& folder);

}  // namespace kvbound::sim
