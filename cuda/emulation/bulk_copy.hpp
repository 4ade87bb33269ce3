// Bulk copies into shared memory that have been issued and not yet waited for. They complete on an mbarrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "block.hpp"

namespace kvbound::cuda::emulation {

struct BulkLoad {
  std::byte* to;  ///< in shared memory
  int64_t bytes;
  uint64_t* barrier;
  std::function<void()> write;  ///< writes all the bytes
  CallSite where;
};

/// The loads of a cluster's blocks, and what they send to each other. Eager ones land when they are issued;
/// the others when no thread can go on without them, and until then their target is NaN.
class BulkLoads {
 public:
  /// Into the running block's shared memory.
  void issue(const char* name, BulkLoad load);
  /// Into that of the block with this rank, as the mbarrier.
  void issue(const char* name, BulkLoad load, int rank);
  /// Lands one load whose mbarrier a thread waits for; which one depends on the schedule.
  bool land_one();
  void refuse_to_end(int rank) const;
  void restart() { in_flight_.clear(); }

 private:
  struct InFlight {
    BulkLoad load;
    int rank;
  };
  // By mbarrier, in the order of the first one's issue.
  std::vector<std::pair<uint64_t*, std::vector<InFlight>>> in_flight_;
};

/// Writes to shared memory as the asynchronous proxy does: `bytes` from `from`, or zeros if that is null.
void write_shared(std::byte* to, const void* from, int64_t bytes);

/// cp.async.bulk from global to shared memory.
void load_bulk(void* shared, const void* global, int64_t bytes, uint64_t* barrier, CallSite where);

}  // namespace kvbound::cuda::emulation
