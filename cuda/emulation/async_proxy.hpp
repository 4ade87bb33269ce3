// What a cluster's blocks leave to the asynchronous proxy: bulk copies, the barriers that count them,
// and products of warpgroups.
#pragma once

#include <map>

#include "block.hpp"
#include "bulk_copy.hpp"
#include "mbarrier.hpp"
#include "warpgroup_mma.hpp"

namespace kvbound::cuda::emulation {

struct AsyncProxy {
  Mbarriers mbarriers;
  BulkLoads loads;
  std::map<ThreadId, Warpgroup> warpgroups;  // by their first threads

  /// Lands one bulk load that threads wait for. False if there is none.
  bool land_one() { return loads.land_one(); }
  /// Fails if a thread that returns has not waited for what it issued.
  void refuse_to_return(ThreadId id);
  /// The same for a whole block, whose last thread returns.
  void refuse_to_end(int rank);
  void restart();
};

/// fence.proxy.async: what the block has written becomes visible to the asynchronous proxy. On a GPU, what
/// the calling thread has written: that the writing thread makes the fence cannot be checked here.
void fence_async_proxy();
/// Fails if bytes of shared memory were written, and no fence has shown that to the asynchronous proxy.
void require_visible(const void* shared, int64_t bytes, const char* name, CallSite where);

}  // namespace kvbound::cuda::emulation
