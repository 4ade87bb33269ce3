#include "block.hpp"

#include <cstring>
#include <map>

#include "memory.hpp"
#include "runner.hpp"

namespace kvbound::cuda::emulation {

// Faults of the block's threads, and what each thread waits for, in words.

void Runner::record(const std::string& problem, CallSite where) {
  fault_ = Fault{"block " + emulation::text(blockIdx) + ", " + thread_name(current_) + " " + problem, where};
}

std::string Runner::thread_name(ThreadId id) const {
  return "thread " + emulation::text(names_[static_cast<size_t>(number_in_block(id))]);
}

std::string Runner::name(ThreadId id) const {
  const std::string of_block = resident_ > 1 ? " of block " + emulation::text(block_of(id).index) : "";
  return thread_name(id) + of_block;
}

std::string Runner::first_gone() const {
  std::string first;
  each_thread([&](ThreadId id) {
    const bool is_here = block_rank(id) == block_rank(current_);
    if (first.empty() && is_here && (warp_of(id).gone & bit_of(id)) != 0) first = name(id);
  });
  return first;
}

std::string Runner::first_at_barrier() const {
  std::string first;
  each_thread([&](ThreadId id) {
    const bool is_here = block_rank(id) == block_rank(current_);
    if (first.empty() && is_here && (warp_of(id).at_barrier & bit_of(id)) != 0) first = name(id);
  });
  return first;
}

CallSite Runner::first_wait() const {
  const Step* first = nullptr;
  each_thread([&](ThreadId id) {
    if (first == nullptr && waits(id)) first = thread(id).step;
  });
  return first == nullptr ? CallSite{} : first->where;
}

std::string Runner::all_waits() const {
  struct Crowd {
    ThreadId first = 0;
    int count = 0;
  };
  std::map<std::string, Crowd> crowds;  // by the step for which the threads wait
  each_thread([&](ThreadId id) {
    if (!waits(id)) return;
    Crowd& crowd = crowds[emulation::text(*thread(id).step)];
    if (crowd.count++ == 0) crowd.first = id;
  });
  std::string all = std::to_string(gone_) + " have returned";
  for (const auto& [what, crowd] : crowds) {
    all += "; " + std::to_string(crowd.count) + " from " + name(crowd.first) + " on wait at " + what;
  }
  return all;
}

std::optional<std::string> Runner::place_in_shared(const void* address) const {
  for (int rank = 0; rank < resident_; ++rank) {
    const auto place = blocks_[static_cast<size_t>(rank)]->shared.place(address);
    if (!place) continue;
    return resident_ == 1 ? *place : *place + " of block " + std::to_string(rank) + " of the cluster";
  }
  return std::nullopt;
}

std::string text(uint3 index) {
  return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z) + ")";
}

std::string text(CallSite where) { return std::string(where.file) + ":" + std::to_string(where.line); }

std::string text(const Step& step) {
  std::string name = step.name;
  if (step.mask != 0 && step.kind != nullptr) {
    name += " of mask 0x";
    for (int shift = 28; shift >= 0; shift -= 4) name += "0123456789abcdef"[step.mask >> shift & 15];
  }
  if (step.state != nullptr) name += " (" + step.state(step.kind) + ")";
  return name + " at " + text(step.where);
}

// The functions for kernels' threads, of the runner on this thread of the operating system.

std::optional<Fault> run_cluster(const Grid& grid, uint64_t cluster, Observer* watching) {
  return Runner::here().run(grid, cluster, watching);
}

bool in_kernel() { return Runner::running() != nullptr && Runner::running()->in_kernel(); }
void fail(const std::string& problem, CallSite where) { Runner::running()->fail(problem, where); }
void fail_misaligned(const char* name, CallSite where) {
  fail(std::string(name) + " accesses a misaligned address", where);
}
void fail_outside_mask(const char* name, int reader, int source, CallSite where) {
  fail(std::string("is in ") + name + ", in which lane " + std::to_string(reader) + " reads lane " +
           std::to_string(source) + " outside the mask",
       where);
}

void fail_for_good(std::string (*problem)()) {
  Runner::running()->record(problem(),
                            {});  // its temporaries are destroyed before leave(), which never returns
  Runner::running()->leave();
}

bool stack_overflown_at(const void* address) { return Runner::running()->fiber().overflown_at(address); }
std::byte* clear_stack() { return Runner::running()->fiber().clear(); }

std::string place_in_memory(const void* address) {
  return Runner::running()->place_in_shared(address).value_or(place_in_device_memory(address));
}

int lane() { return Runner::running()->current() % kWarpSize; }
int warp() { return number_in_block(Runner::running()->current()) / kWarpSize; }
int cluster_size() { return Runner::running()->cluster_size(); }
int choose(int count) { return Runner::running()->choose(count); }
bool eager_copies() { return Runner::running()->eager_copies(); }

ThreadId this_thread() { return Runner::running()->current(); }
std::string name_of(ThreadId id) { return Runner::running()->name(id); }
void park(const Step& step) { Runner::running()->park(step); }
void resume(ThreadId id) { Runner::running()->resume(id); }

void arrive_at_cluster(CallSite where) {
  if (observer != nullptr) observer->lane(Instruction::cluster_barrier, site_of(where));
  Runner::running()->arrive_at_cluster(where);
}
void wait_for_cluster(CallSite where) { Runner::running()->wait_for_cluster(where); }

SharedArena& shared_arena() { return Runner::running()->shared(); }
SharedArena& shared_arena_of(int rank) { return Runner::running()->shared_of(rank); }
AsyncProxy& async_proxy() { return Runner::running()->async_proxy(); }

void* shared_array(int number, int64_t offset, int64_t bytes, int64_t alignment, CallSite where) {
  std::string problem;
  void* const array = shared_arena().array(number, offset, bytes, alignment, problem);
  if (array == nullptr) fail(problem, where);
  return array;
}

void require_shared(const void* memory, int64_t bytes, int64_t alignment, const char* name, CallSite where) {
  if (!shared_arena().holds(memory, bytes)) {
    fail(std::string(name) + " accesses " + place_in_memory(memory) + ", which is outside shared memory",
         where);
  }
  if (reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(alignment) != 0) {
    fail(std::string(name) + " accesses " + place_in_memory(memory) + ", which is misaligned", where);
  }
}

uint32_t shared_address(const void* memory, CallSite where) {
  const int64_t address = shared_arena().address(memory);
  if (address < 0)
    fail("takes the address of " + place_in_memory(memory) + ", which is in no shared array", where);
  return static_cast<uint32_t>(address);
}

void observe_lane(Instruction what) {
  if (observer != nullptr) observer->lane(what, reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
}

void await_previous_launch() { Runner::running()->await_previous_launch(); }

void refuse_early_access(const void* memory, size_t bytes, CallSite where) {
  if (has_yet_to_wait && is_device_memory(memory, bytes))
    fail("accesses " + place_in_memory(memory) + " before it has waited for the launch before", where);
}

void copy_async(void* shared, const void* global, int bytes, CallSite where) {
  refuse_early_access(global, static_cast<size_t>(bytes), where);
  require_shared(shared, 16, 16, "cp.async", where);
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) fail("cp.async reads from a misaligned address", where);
  if (bytes < 0 || bytes > 16) fail("cp.async copies " + std::to_string(bytes) + " bytes", where);
  if (bytes > 0) {  // inaccessible memory is a fault of the copy, not of the wait
    static_cast<void>(*static_cast<const volatile std::byte*>(global));
    static_cast<void>(static_cast<const volatile std::byte*>(global)[bytes - 1]);
  }
  Runner::running()->copies().issue({shared, global, bytes, where}, eager_copies());
  if (observer != nullptr) {
    const uintptr_t site = site_of(where);
    observer->access(Instruction::async_copy, reinterpret_cast<uintptr_t>(shared), 16, site);
    if (bytes > 0)
      observer->access(Instruction::async_copy, reinterpret_cast<uintptr_t>(global), bytes, site);
  }
}

void commit_copies() { Runner::running()->copies().commit(); }
void wait_for_copies(int in_flight) { Runner::running()->copies().wait(in_flight, eager_copies()); }

}  // namespace kvbound::cuda::emulation
