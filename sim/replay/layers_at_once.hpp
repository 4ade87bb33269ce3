// How many layers of a trace are replayed together.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// Bytes of memory that a replay may take of the host, and of a device that has memory of its own.
struct ReplayMemory {
  int64_t host = 0;
  std::optional<int64_t> device = std::nullopt;
};

/// So many layers fit into memory, at least one. The host has each layer's doubles, with one layer that is
/// read meanwhile, and what `runs` runs record of it; a device, or else the host, has each layer's prompt, a
/// cache as large as that, and the cache that is joined of all.
///
/// page_size  Scope's
int64_t layers_that_fit(const traces::TraceInfo& trace, int64_t runs, int64_t steps,
                        const ReplayMemory& memory, int64_t page_size = 0);

/// The layers whose decode steps the runs' devices take together: as many as fit into a quarter of the memory
/// that the host has left, and of the device's; other replays may run beside. One where no run would gain by
/// more: on the reference, and where caches are rebuilt.
int64_t layers_at_once(const traces::TraceInfo& trace, const std::vector<Run>& runs, int64_t steps,
                       int64_t page_size = 0);

}  // namespace kvbound::sim
