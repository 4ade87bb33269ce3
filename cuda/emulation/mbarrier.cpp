#include "mbarrier.hpp"

#include <algorithm>
#include <utility>

#include "async_proxy.hpp"
#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr uint64_t kMark = 0x6d62617272696572;
constexpr int64_t kMost = (1 << 20) - 1;  // arrivals, and bytes of either sign

}  // namespace

Mbarriers::Barrier* Mbarriers::known(uint64_t* barrier) {
  const auto found = barriers_.find(barrier);
  return found == barriers_.end() ? nullptr : &found->second;
}

Mbarriers::Barrier& Mbarriers::require(uint64_t* barrier, const char* name, CallSite where) {
  Barrier* const found = known(barrier);
  if (found == nullptr) fail(std::string(name) + " uses an mbarrier that is not initialised", where);
  if (*barrier != kMark) {
    fail(std::string(name) + " uses an mbarrier that has been overwritten since it was initialised at " +
             text(found->initialised),
         where);
  }
  return *found;
}

void Mbarriers::init(uint64_t* barrier, int64_t arrivals, CallSite where) {
  require_shared(barrier, 8, 8, "mbarrier.init", where);
  if (arrivals < 1 || arrivals > kMost) {
    fail("mbarrier.init with " + std::to_string(arrivals) + " arrivals, 1.." + std::to_string(kMost) +
             " are possible",
         where);
  }
  if (const Barrier* const before = known(barrier)) {
    fail("mbarrier.init of an mbarrier in use, which was initialised at " + text(before->initialised), where);
  }
  barriers_.emplace(
      barrier, Barrier{.arrivals = arrivals, .missing = arrivals, .by = this_thread(), .initialised = where});
  *barrier = kMark;
}

void Mbarriers::fence() {
  for (auto& [address, barrier] : barriers_) barrier.fenced = barrier.fenced || barrier.by == this_thread();
}

void Mbarriers::arrive(uint64_t* barrier, int64_t expected_bytes, CallSite where) {
  Barrier& mine = require(barrier, "mbarrier.arrive", where);
  if (expected_bytes < 0 || mine.bytes + expected_bytes > kMost) {
    fail("mbarrier.arrive expects " + std::to_string(expected_bytes) + " bytes; " + std::to_string(kMost) +
             " are the most that a phase counts: " + state(mine),
         where);
  }
  if (mine.missing == 0) {
    fail("mbarrier.arrive is one arrival more than the phase expects: " + state(mine), where);
  }
  if (observer != nullptr) observer->lane(Instruction::mbarrier, site_of(where));
  mine.bytes += expected_bytes;
  --mine.missing;
  finish_phase(mine);
}

void Mbarriers::complete(uint64_t* barrier, int64_t bytes, CallSite where) {
  Barrier& mine = require(barrier, "a bulk copy", where);
  mine.bytes -= bytes;
  mine.phase_of_bytes = mine.phase;
  mine.copied = where;
  if (mine.bytes < -kMost || (mine.missing == 0 && mine.bytes < 0)) {
    fail("a bulk copy issued at " + text(where) +
             " lands more bytes than its mbarrier expects: " + state(mine),
         where);
  }
  finish_phase(mine);
}

void Mbarriers::finish_phase(Barrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  for (const ThreadId id : std::exchange(barrier.waiting, {})) resume(id);
}

void Mbarriers::wait(uint64_t* barrier, unsigned parity, CallSite where) {
  Barrier& mine = require(barrier, "mbarrier.try_wait", where);
  if (parity > 1) fail("mbarrier.try_wait with parity " + std::to_string(parity), where);
  if (observer != nullptr) observer->lane(Instruction::mbarrier, site_of(where));
  const bool of_current = parity == static_cast<unsigned>(mine.phase % 2);
  const int64_t phase = of_current ? mine.phase : mine.phase - 1;
  const auto [seen, first] = mine.seen_by.try_emplace(this_thread(), -2);
  if (seen->second == phase) {
    fail("mbarrier.try_wait for phase " + std::to_string(phase) +
             ", which this thread has waited for before: its phase bit was not flipped",
         where);
  }
  if (of_current) {
    mine.waiting.push_back(this_thread());
    park({"mbarrier.try_wait", 0, barrier, where, &state_of});
    require(barrier, "mbarrier.try_wait", where);
    if (mine.phase != phase + 1) {
      fail("mbarrier.try_wait for phase " + std::to_string(phase) +
               ", after which another one was completed before this thread went on",
           where);
    }
  }
  mine.seen_by[this_thread()] = phase;
  mine.seen = std::max(mine.seen, phase);
}

void Mbarriers::require_fenced(uint64_t* barrier, const char* name, CallSite where) {
  const Barrier& mine = require(barrier, name, where);
  if (!mine.fenced) {
    fail(std::string(name) + " uses an mbarrier that was initialised at " + text(mine.initialised) +
             ", with no fence behind that",
         where);
  }
}

void Mbarriers::end_block(int rank) {
  for (auto each = barriers_.begin(); each != barriers_.end();) {
    const Barrier& barrier = each->second;
    if (block_rank(barrier.by) != rank) {
      ++each;
      continue;
    }
    if (barrier.phase_of_bytes > barrier.seen) {
      fail("is its block's last to return, and none has waited for the bulk copy issued at " +
               text(barrier.copied),
           barrier.copied);
    }
    each = barriers_.erase(each);
  }
}

std::string Mbarriers::state(const Barrier& barrier) {
  return "in phase " + std::to_string(barrier.phase) + " of the mbarrier that was initialised at " +
         text(barrier.initialised) + ", " + std::to_string(barrier.missing) + " of " +
         std::to_string(barrier.arrivals) + " arrivals and " + std::to_string(barrier.bytes) +
         " bytes are missing";
}

std::string Mbarriers::state_of(const void* barrier) {
  auto* const address = const_cast<uint64_t*>(static_cast<const uint64_t*>(barrier));
  return state(async_proxy().mbarriers.find(address));
}

}  // namespace kvbound::cuda::emulation
