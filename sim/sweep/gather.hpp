// Puts the results of a sweep's items together as one replay of everything gives them.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <kvbound/sim/replay/replay_cubes.hpp>

#include "result_index.hpp"
#include "sweep_folder.hpp"

namespace kvbound::sim {

/// An item of which runs have no results.
struct MissingItem {
  SweepItem item;                  ///< with the missing runs only
  std::vector<Attempt> attempts;   ///< failed ones; one that still runs is none
  bool other_computation = false;  ///< whether there are results of another build, compiler, BLAS or GPU
};

class Gathering {
 public:
  /// Finds out which results there are.
  ///
  /// mixed  also take results of other builds, compilers, BLAS kernels and GPUs, where there
  ///        are none of the sweep's own
  Gathering(const SweepFolder& folder, const Sweep& sweep, bool mixed);

  const std::vector<MissingItem>& missing() const { return missing_; }
  bool is_whole(size_t trace) const { return !incomplete_.contains(trace); }

  /// A trace's results, of which none may be missing: in the order of layers, whoever computed them and when.
  /// Throws TraceError for a file that is no result.
  ReplayReport trace(size_t trace);

  /// The environment of all results that were read so far: environment() of the first, but every version,
  /// revision, compiler and device that there was, and the most threads. Before any was read, this program's.
  Environment environment() const;

 private:
  void take(const SweepItem& item, const ResultSource& source, ReplayResult& result);

  const SweepFolder& folder_;
  const Sweep& sweep_;
  bool mixed_;
  ItemKeys keys_;
  ResultIndex index_;
  std::vector<MissingItem> missing_;
  std::set<size_t> incomplete_;            // traces
  std::vector<Environment> environments_;  // different ones
};

}  // namespace kvbound::sim
