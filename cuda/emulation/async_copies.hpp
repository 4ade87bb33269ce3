// The copies from global to shared memory that a thread has issued and not yet waited for.
#pragma once

#include <cstddef>
#include <vector>

#include <kvbound/reference/core/call_site.hpp>

namespace kvbound::cuda::emulation {

/// 16 bytes, `bytes` of them from memory, the rest zero.
struct AsyncCopy {
  void* to;
  const void* from;
  int bytes;
  CallSite where;

  void land() const;
};

/// A thread's copies in the order of issue. Eager copies land when they are issued, others
/// when they are waited for.
class AsyncCopies {
 public:
  void issue(const AsyncCopy& copy, bool eager);
  /// Closes the group of all copies since the last call.
  void commit() { group_ends_.push_back(copies_.size()); }
  /// Completes the copies of all groups but the latest `in_flight`.
  void wait(int in_flight, bool eager);
  /// A copy that no thread has waited for; null if there is none.
  const AsyncCopy* in_flight() const { return landed_ < copies_.size() ? &copies_[landed_] : nullptr; }
  void clear();

 private:
  void forget_landed();

  std::vector<AsyncCopy> copies_;
  std::vector<size_t> group_ends_;  // positions in copies_
  size_t landed_ = 0;               // copies
  size_t waited_ = 0;               // groups
};

}  // namespace kvbound::cuda::emulation
