// How many layers of a trace are replayed together.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// Bytes of memory that a replay may take of the host and of a device.
struct ReplayMemory {
  int64_t host = 0;
  int64_t device = 0;
};

/// So many layers fit into memory, at least one: the host's doubles with one layer that is read meanwhile,
/// and on a device each layer's prompt, a cache as large as that, and the cache that is joined of all.
int64_t layers_that_fit(const traces::TraceInfo& trace, const ReplayMemory& memory);

/// The layers whose decode steps the runs' devices take together: as many as fit into a quarter of the host's
/// memory and half of the device's. One where all runs are on the reference, which would gain nothing.
int64_t layers_at_once(const traces::TraceInfo& trace, const std::vector<Run>& runs);

}  // namespace kvbound::sim
