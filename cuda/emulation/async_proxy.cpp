#include "async_proxy.hpp"

#include <cstring>

#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {

void AsyncProxy::refuse_to_return(ThreadId id) {
  if (const auto mine = warpgroups.find(Warpgroup::first_thread(id)); mine != warpgroups.end()) {
    mine->second.refuse_to_return(id);
  }
}

void AsyncProxy::refuse_to_end(int rank) {
  for (const auto& [first, warpgroup] : warpgroups) {
    if (block_rank(first) == rank) warpgroup.refuse_to_end();
  }
  loads.refuse_to_end(rank);
  mbarriers.end_block(rank);
}

void AsyncProxy::restart() {
  mbarriers.restart();
  loads.restart();
  warpgroups.clear();
}

void fence_async_proxy() {
  shared_arena().publish();
  async_proxy().mbarriers.fence();
}

void require_visible(const void* shared, int64_t bytes, const char* name, CallSite where) {
  const auto* const place = static_cast<const std::byte*>(shared);
  if (std::memcmp(shared_arena().view(place), place, static_cast<size_t>(bytes)) == 0) return;
  fail(std::string(name) + " reads shared memory that was written with no fence.proxy.async behind that",
       where);
}

}  // namespace kvbound::cuda::emulation
