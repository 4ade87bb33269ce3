// The operations that bench measures on a device, in the order of its list. Compiled
// twice, as device_bench.cpp is.
#pragma once

#include <span>

#include "bench.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {

std::span<const BenchOperation> score_operations();  ///< attention, and what a prompt's entries are scored by
std::span<const BenchOperation> selection_operations();  ///< budgets and kept entries, and their compaction
std::span<const BenchOperation> merging_operations();    ///< a prompt's evicted entries merge
std::span<const BenchOperation> decoding_operations();   ///< parts of a decode step
std::span<const BenchOperation> session_operations();    ///< whole compressions and steps

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
