#include "bulk_copy.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "async_proxy.hpp"
#include "memory.hpp"
#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr const char* kLoad = "cp.async.bulk";
constexpr int64_t kUnit = 16;

void require_bulk(const void* shared, const void* global, int64_t bytes, CallSite where) {
  if (bytes <= 0 || bytes % kUnit != 0) {
    fail(std::string(kLoad) + " copies " + std::to_string(bytes) + " bytes, which is no multiple of 16",
         where);
  }
  require_shared(shared, bytes, kUnit, kLoad, where);
  require_aligned(global, kUnit, kLoad, where);
  refuse_early_access(global, static_cast<size_t>(bytes), where);
  if (!is_device_memory(global, static_cast<size_t>(bytes))) {
    fail(std::string(kLoad) + " copies " + std::to_string(bytes) + " bytes at " + place_in_memory(global),
         where);
  }
}

}  // namespace

void write_shared(std::byte* to, const void* from, int64_t bytes) {
  const auto count = static_cast<size_t>(bytes);
  if (from == nullptr) {
    std::memset(to, 0, count);
  } else {
    std::memcpy(to, from, count);
  }
  SharedArena* arena =
      &shared_arena();  // of the block that issued the load, which need not be the running one
  for (int rank = 0; !arena->holds(to, bytes) && rank < cluster_size(); ++rank)
    arena = &shared_arena_of(rank);
  std::memcpy(arena->view(to), to, count);
}

void BulkLoads::issue(const char* name, BulkLoad load) {
  require_shared(load.barrier, 8, 8, name, load.where);
  issue(name, std::move(load), block_rank(this_thread()));
}

void BulkLoads::issue(const char* name, BulkLoad load, int rank) {
  Mbarriers& barriers = async_proxy().mbarriers;
  barriers.require_fenced(load.barrier, name, load.where);
  if (eager_copies()) {
    load.write();
    barriers.complete(load.barrier, load.bytes, load.where);
    return;
  }
  const std::vector<std::byte> nan(static_cast<size_t>(load.bytes), std::byte{0xff});
  write_shared(load.to, nan.data(), load.bytes);
  auto of_barrier = std::ranges::find(in_flight_, load.barrier, &decltype(in_flight_)::value_type::first);
  if (of_barrier == in_flight_.end()) of_barrier = in_flight_.insert(of_barrier, {load.barrier, {}});
  of_barrier->second.push_back({std::move(load), rank});
}

bool BulkLoads::land_one() {
  Mbarriers& barriers = async_proxy().mbarriers;
  std::vector<size_t> waited_for;
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    if (barriers.is_waited_for(in_flight_[i].first)) waited_for.push_back(i);
  }
  if (waited_for.empty()) return false;
  const auto any_of = [](const auto& all) {
    return static_cast<size_t>(choose(static_cast<int>(all.size())));
  };
  const auto chosen = in_flight_.begin() + static_cast<std::ptrdiff_t>(waited_for[any_of(waited_for)]);
  std::vector<InFlight>& loads = chosen->second;
  std::swap(loads[any_of(loads)], loads.back());
  const BulkLoad load = std::move(loads.back().load);
  loads.pop_back();
  if (loads.empty()) in_flight_.erase(chosen);
  load.write();
  barriers.complete(load.barrier, load.bytes, load.where);
  return true;
}

void BulkLoads::refuse_to_end(int rank) const {
  for (const auto& [barrier, loads] : in_flight_) {
    for (const InFlight& each : loads) {
      if (each.rank != rank) continue;
      fail("is its block's last to return, and none has waited for the bulk copy issued at " +
               text(each.load.where),
           each.load.where);
    }
  }
}

void load_bulk(void* shared, const void* global, int64_t bytes, uint64_t* barrier, CallSite where) {
  require_bulk(shared, global, bytes, where);
  auto* const to = static_cast<std::byte*>(shared);
  const auto write = [to, global, bytes] { write_shared(to, global, bytes); };
  async_proxy().loads.issue(kLoad, {to, bytes, barrier, write, where});
  if (observer != nullptr) {
    observer->shared_bytes(Instruction::bulk_copy, bytes);
    observer->device_bytes(reinterpret_cast<uintptr_t>(global), bytes);
  }
}

}  // namespace kvbound::cuda::emulation
