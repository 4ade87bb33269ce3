// Barriers in shared memory that count arrivals and bytes (mbarrier), as the emulation keeps them: by their
// addresses, beside shared memory. Their 64 bits hold a mark, so that a write to them is noticed.
//
// Stricter than PTX: a thread waits for a phase once, so that a second wait for it, which returns at once, is
// taken for a phase bit that was not flipped.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "block.hpp"

namespace kvbound::cuda::emulation {

class Mbarriers {
 public:
  void init(uint64_t* barrier, int64_t arrivals, CallSite where);
  /// Shows the barriers that the running thread has initialised to bulk copies and to the cluster.
  void fence();
  /// Expects so many bytes more in this phase, and then arrives.
  void arrive(uint64_t* barrier, int64_t expected_bytes, CallSite where);
  /// Returns when the phase with this parity is complete: the current one, or the one before.
  void wait(uint64_t* barrier, unsigned parity, CallSite where);

  /// For a bulk copy that begins: the barrier is initialised, and a fence has shown that to it.
  void require_fenced(uint64_t* barrier, const char* name, CallSite where);
  /// So many bytes of a bulk copy, issued at `where`, have landed.
  void complete(uint64_t* barrier, int64_t bytes, CallSite where);
  bool is_waited_for(uint64_t* barrier) { return !find(barrier).waiting.empty(); }

  /// Fails if bytes have landed that no thread has waited for; forgets the barriers of a block that ends.
  void end_block(int rank);
  void restart() { barriers_.clear(); }

 private:
  struct Barrier {
    int64_t arrivals;   // of every phase
    int64_t missing;    // arrivals
    int64_t bytes = 0;  // expected and not yet landed
    int64_t phase = 0;  // complete ones
    bool fenced = false;
    ThreadId by;
    CallSite initialised;
    CallSite copied{};            // the last copy that landed here
    int64_t phase_of_bytes = -1;  // the last phase in which any landed
    int64_t seen = -1;            // the last phase that a thread has waited for
    std::map<ThreadId, int64_t> seen_by{};
    std::vector<ThreadId> waiting{};
  };

  Barrier* known(uint64_t* barrier);
  Barrier& find(uint64_t* barrier) { return barriers_.at(barrier); }
  Barrier& require(uint64_t* barrier, const char* name, CallSite where);
  static void finish_phase(Barrier& barrier);
  static std::string state(const Barrier& barrier);
  static std::string state_of(const void* barrier);

  std::map<uint64_t*, Barrier> barriers_;
};

}  // namespace kvbound::cuda::emulation
