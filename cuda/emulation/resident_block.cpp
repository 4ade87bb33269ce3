#include "resident_block.hpp"

#include <algorithm>

namespace kvbound::cuda::emulation {

void ResidentBlock::restart(uint3 place, int threads_count, int64_t shared_bytes, bool is_dependent) {
  index = place;
  begun = false;
  gone = at_barrier = flags = 0;
  const int count_of_warps = (threads_count + kWarpSize - 1) / kWarpSize;
  for (int w = 0; w < count_of_warps; ++w) {
    const unsigned there = ~0U >> std::max(0, (w + 1) * kWarpSize - threads_count);
    warps[static_cast<size_t>(w)] = {.runnable = there, .gone = ~there};
  }
  runnable = ~0U >> (kMostWarps - count_of_warps);
  for (int number = 0; number < threads_count; ++number) {
    Thread& each = threads[static_cast<size_t>(number)];
    each.cluster_arrivals = each.cluster_waits = 0;
    each.has_yet_to_wait = is_dependent;
  }
  shared.restart(shared_bytes);
}

}  // namespace kvbound::cuda::emulation
