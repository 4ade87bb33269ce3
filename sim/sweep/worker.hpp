// Computes items of a sweep, one at a time, until none is left that it may compute.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "schedule.hpp"
#include "sweep_folder.hpp"

namespace kvbound::sim {

struct WorkerOptions {
  int64_t index = 0, count = 1;  ///< this is worker `index` of `count`: it begins with every count-th item
  int64_t retries = 2;           ///< after the first try
};

/// An item that was computed, or given up.
struct ItemReport {
  const PlannedItem* item = nullptr;
  double seconds = 0;
  std::vector<Attempt> attempts;  ///< of an item that was given up; else empty
};

/// Computes items in their order: first those whose index is this worker's, then whatever other workers
/// left, and at the end, again, those that failed. An item that another process computes, or that has
/// results, is passed over. A try fails if the trace cannot be read, its numbers are too large to compute
/// with, or its process was killed. A machine gives an item up after `retries` further tries of its own;
/// when three have, all do.
///
/// items   of all workers, ordered alike or nearly so
/// throws  DeviceError, after which a new process is to go on; IoError if the folder cannot be written, for
///         which no item is blamed; TraceError if this program computes otherwise than the one that planned
///         the sweep (Sweep::computation)
void work(const SweepFolder& folder, const Sweep& sweep, const std::vector<PlannedItem>& items,
          const WorkerOptions& options, const std::function<void(const ItemReport&)>& report);

/// Computes one item of the traces' sweep.
ItemResult compute(OpenTraces& traces, const SweepItem& item);
ItemResult compute(const Sweep& sweep, const SweepItem& item);

}  // namespace kvbound::sim
