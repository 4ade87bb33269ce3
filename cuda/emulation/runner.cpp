#include "runner.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvbound::cuda::emulation {
namespace {

constexpr const char* kBarrier = "__syncthreads";

// Thrown to unwind a kernel's thread after its fault has been recorded.
struct Failed {};

uint3 index_in(dim3 extent, uint64_t number) {
  return {static_cast<unsigned>(number % extent.x), static_cast<unsigned>(number / extent.x % extent.y),
          static_cast<unsigned>(number / extent.x / extent.y)};
}

}  // namespace

Runner& Runner::here() {
  thread_local const auto runner = std::make_unique<Runner>();
  of_thread = runner.get();
  return *runner;
}

void Runner::fail(const std::string& problem, CallSite where) {
  record(problem, where);
  throw Failed();
}

std::optional<Fault> Runner::run(const Grid& grid, uint64_t cluster, Observer* watching) {
  grid_ = &grid;
  prepare(cluster);
  std::array<SharedArena*, kMostBlocksOfCluster> arenas;  // the observer reads it until the cluster ends
  if (watching != nullptr) {
    std::transform(blocks_.begin(), blocks_.begin() + resident_, arenas.begin(),
                   [](const auto& block) { return &block->shared; });
    watching->begin_cluster({arenas.data(), static_cast<size_t>(resident_)});
    observer = watching;
  }
  set_current(next());
  fiber_ = &idle_fiber();
  Fiber::change(main_, *fiber_);
  fiber_ = &main_;
  current_ = -1;
  has_yet_to_wait = false;
  if (watching != nullptr) watching->end_cluster();
  observer = nullptr;
  if (fault_) drop_everything();
  for (int rank = 0; rank < resident_; ++rank) {
    ResidentBlock& block = *blocks_[static_cast<size_t>(rank)];
    block.shared.open();
    const auto overwritten = block.shared.overwritten();
    if (overwritten && !fault_) fault_ = Fault{"block " + text(block.index) + ": " + *overwritten, {}};
  }
  return std::exchange(fault_, std::nullopt);
}

void Runner::prepare(uint64_t cluster) {
  const dim3 grid = grid_->grid;
  const dim3 extent = grid_->cluster;
  const uint3 first = index_in(dim3(grid.x / extent.x, grid.y / extent.y, grid.z / extent.z), cluster);
  blockDim = grid_->block;
  gridDim = grid_->grid;
  name_threads();
  count_ = static_cast<int>(count(grid_->block));
  resident_ = static_cast<int>(count(extent));
  gone_ = 0;
  while (blocks_.size() < static_cast<size_t>(resident_))
    blocks_.push_back(std::make_unique<ResidentBlock>());
  for (int rank = 0; rank < resident_; ++rank) {
    const uint3 within = index_in(extent, static_cast<uint64_t>(rank));
    const uint3 place{first.x * extent.x + within.x, first.y * extent.y + within.y,
                      first.z * extent.z + within.z};
    ResidentBlock& block = *blocks_[static_cast<size_t>(rank)];
    block.restart(place, count_, grid_->shared_bytes, grid_->is_dependent);
    if (resident_ > 1) block.shared.close("has not begun");
  }
  ready_ = ~0U >> (32 - resident_);
  block_ = blocks_.front().get();
  blockIdx = block_->index;
  cluster_barrier_ = {};
  proxy_.restart();
  random_ = Random(Random(grid_->schedule.seed).next() + cluster);
}

void Runner::name_threads() {
  const dim3 block = grid_->block;
  if (block.x == begun_for_.x && block.y == begun_for_.y && block.z == begun_for_.z) return;
  begun_for_ = block;
  for (uint64_t number = 0; number < count(block); ++number) names_[number] = index_in(block, number);
}

// Resets the fibers and copies after a fault: the threads never continue.
void Runner::drop_everything() {
  idle_.clear();
  for (const auto& fiber : fibers_) {
    fiber->restart();
    idle_.push_back(fiber.get());
  }
  each_thread([this](ThreadId id) { thread(id).copies.clear(); });
}

// The loop of every fiber: runs the current thread, then threads that have not begun, until a
// waiting one is to continue.
void Runner::run_threads() {
  Runner& runner = *of_thread;
  Fiber::begin(runner.main_);
  bool failed = false;
  while (!failed) {
    try {
      do {
        runner.grid_->kernel.call(runner.grid_->kernel.arguments);
        runner.refuse_to_return();
      } while (runner.begin_another());
    } catch (const Failed&) {
      failed = true;
    } catch (const std::exception& error) {
      runner.record(std::string("throws: ") + error.what(), {});
      failed = true;
    } catch (...) {
      runner.record("throws", {});
      failed = true;
    }
  }
  runner.leave();
}

// Counts the current thread as returned, unless other threads wait for it.
void Runner::refuse_to_return() {
  Thread& mine = me();
  if (const AsyncCopy* copy = mine.copies.in_flight()) {
    fail("returns while an async copy is in flight that was issued at " + text(copy->where), copy->where);
  }
  mine.copies.clear();
  if (has_yet_to_wait) fail("returns without having waited for the launch before", {});
  proxy_.refuse_to_return(current_);
  refuse_to_leave_others();
  my_warp().gone |= bit_of(current_);
  ++gone_;
  if (++block_->gone == count_) {
    proxy_.refuse_to_end(block_rank(current_));
    if (resident_ > 1) block_->shared.close("has ended");
  }
}

void Runner::refuse_to_leave_others() {
  if (block_->at_barrier > 0) {
    fail("returns, while " + first_at_barrier() + " waits at __syncthreads at " + text(block_->barrier),
         block_->barrier);
  }
  const Warp& mine = my_warp();
  const unsigned bit = bit_of(current_);
  for (unsigned others = mine.at_step; others != 0; others &= others - 1) {
    const int other = of_this_warp(std::countr_zero(others));
    const Step& step = *thread(other).step;
    if (step.mask & bit) fail("returns, while " + name(other) + " waits for it in " + text(step), step.where);
  }
  const Thread& my_thread = me();
  if (my_thread.cluster_arrivals != my_thread.cluster_waits)
    fail("returns without waiting at the cluster's barrier", {});
  if (cluster_barrier_.arrived > 0) fail("returns, while others have arrived at the cluster's barrier", {});
}

// Called by a fiber whose thread has returned: switches to the next thread, and returns when this fiber
// is to begin another one.
bool Runner::begin_another() {
  const ThreadId following = next_or_landed();
  if (following < 0 && gone_ < count_ * resident_)
    fail("has returned, and no thread can go on: " + all_waits(), first_wait());
  Fiber& mine = *fiber_;
  if (following < 0) {
    idle_.push_back(&mine);
    Fiber::change(mine, main_);
    return true;
  }
  const bool begun = set_current(following);
  if (begun) {
    idle_.push_back(&mine);
    fiber_ = thread(following).fiber;
    Fiber::change(mine, *fiber_);
  }
  return true;
}

Fiber& Runner::idle_fiber() {
  if (idle_.empty()) {
    const auto number = static_cast<int>(fibers_.size());
    fibers_.push_back(std::make_unique<Fiber>(&Runner::run_threads, number));
    return *fibers_.back();
  }
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  return fiber;
}

int Runner::pick(unsigned set) {
  if (set == 0) __builtin_unreachable();
  switch (grid_->schedule.seed) {
    case 0:
      return std::countr_zero(set);
    case 1:
      return kWarpSize - 1 - std::countl_zero(set);
    default:
      return random_.of(set);
  }
}

int Runner::choose(int count) {
  switch (grid_->schedule.seed) {
    case 0:
      return 0;
    case 1:
      return count - 1;
    default:
      return random_.below(count);
  }
}

bool Runner::moves() { return grid_->schedule.seed > 1 && random_.below(16) == 0; }

// The next thread by the schedule, of those that may continue or begin; -1 if there is none. Mostly the same
// warp of the same block continues, as on a GPU; at one wait in 16 another one may.
ThreadId Runner::next() {
  if (ready_ == 0) return -1;
  const bool begun = current_ >= 0;
  const int here = begun ? block_rank(current_) : 0;
  int rank = here;
  if (resident_ > 1) {
    const bool stay = begun && (ready_ >> here & 1) != 0;
    rank = stay && !moves() ? here : pick(ready_);
  }
  const ResidentBlock& block = rank == here ? *block_ : *blocks_[static_cast<size_t>(rank)];
  const int last = begun && rank == here ? static_cast<int>(warp_number(current_)) : 0;
  const bool stay = begun && rank == here && (block.runnable >> last & 1) != 0;
  const bool move = moves();
  const int warp = stay && !move ? last : pick(block.runnable);
  return rank * kMostThreads + warp * kWarpSize + pick(block.warps[static_cast<size_t>(warp)].runnable);
}

// Bulk loads land as late as they may: when no thread can go on without them.
ThreadId Runner::next_or_landed() {
  ThreadId following = next();
  while (following < 0 && proxy_.land_one()) following = next();
  return following;
}

// Makes the thread the current one. Returns whether it had begun before.
bool Runner::set_current(ThreadId id) {
  const int number = number_in_block(id);
  if (resident_ > 1) {
    block_ = &block_of(id);
    blockIdx = block_->index;
    if (!block_->begun) block_->shared.open();
    block_->begun = true;
  }
  current_ = id;
  threadIdx = names_[static_cast<size_t>(number)];
  const unsigned bit = bit_of(id);
  Warp& warp = my_warp();
  const bool begun = (warp.begun & bit) != 0;
  has_yet_to_wait = me().has_yet_to_wait;
  warp.runnable &= ~bit;
  warp.begun |= bit;
  update_runnable(*block_, id);
  return begun;
}

void Runner::update_runnable(ResidentBlock& block, ThreadId id) {
  const unsigned bit = 1U << warp_number(id);
  block.runnable = block.warps[warp_number(id)].runnable != 0 ? block.runnable | bit : block.runnable & ~bit;
  const unsigned rank = 1U << static_cast<unsigned>(block_rank(id));
  ready_ = block.runnable != 0 ? ready_ | rank : ready_ & ~rank;
}

// Called by a thread that has registered its wait: switches to the next thread, and returns when
// this one is to continue.
void Runner::go_on() {
  const ThreadId following = next_or_landed();
  if (following < 0) fail("waits, and no thread can go on: " + all_waits(), first_wait());
  Thread& waiting = me();
  Fiber& mine = *fiber_;
  const bool continues = following == current_;
  const bool begun = set_current(following);
  if (continues) return;
  waiting.fiber = &mine;
  fiber_ = begun ? me().fiber : &idle_fiber();
  Fiber::change(mine, *fiber_);
}

void Runner::park(const Step& step) {
  me().step = &step;
  my_warp().parked |= bit_of(current_);
  go_on();
}

void Runner::resume(ThreadId id) {
  Warp& warp = warp_of(id);
  warp.parked &= ~bit_of(id);
  warp.runnable |= bit_of(id);
  update_runnable(block_of(id), id);
}

int Runner::wait_for_block(bool flag, CallSite where) {
  ResidentBlock& block = *block_;
  if (block.gone > 0) fail("waits at __syncthreads, but " + first_gone() + " has returned", where);
  if (block.at_barrier > 0 && !same_place(block.barrier, where)) {
    fail("waits at __syncthreads at " + text(where) + ", but " + first_at_barrier() + " at " +
             text(block.barrier),
         where);
  }
  block.barrier = where;
  const Step step{kBarrier, ~0U, nullptr, where};
  me().step = &step;
  my_warp().at_barrier |= bit_of(current_);
  block.flags += flag ? 1 : 0;
  if (++block.at_barrier == count_) {
    const ThreadId begin = current_ - number_in_block(current_);
    for (int first = begin; first < begin + count_; first += kWarpSize) {
      Warp& warp = block.warps[warp_number(first)];
      warp.runnable |= std::exchange(warp.at_barrier, 0);
      update_runnable(block, first);
      if (observer != nullptr) observer->meet(block_rank(begin), static_cast<int>(warp_number(first)), true);
    }
    block.at_barrier = 0;
    block.last_flags = std::exchange(block.flags, 0);
  }
  go_on();
  return block.last_flags;
}

void Runner::arrive_at_cluster(CallSite where) {
  Thread& mine = me();
  if (gone_ > 0) fail("arrives at the cluster's barrier, but a thread of the cluster has returned", where);
  if (mine.cluster_arrivals != mine.cluster_waits) {
    fail("arrives at the cluster's barrier again, without having waited there", where);
  }
  ++mine.cluster_arrivals;
  if (++cluster_barrier_.arrived < count_ * resident_) return;
  cluster_barrier_.arrived = 0;
  ++cluster_barrier_.phase;
  for (const ThreadId id : std::exchange(cluster_barrier_.waiting, {})) resume(id);
}

void Runner::wait_for_cluster(CallSite where) {
  Thread& mine = me();
  if (mine.cluster_arrivals == mine.cluster_waits) {
    fail("waits at the cluster's barrier without having arrived there", where);
  }
  ++mine.cluster_waits;
  if (cluster_barrier_.phase >= mine.cluster_waits) return;
  cluster_barrier_.waiting.push_back(current_);
  park({"the cluster's barrier", 0, nullptr, where});
}

void** Runner::gather(const Step& step, void* argument) {
  Warp& mine = my_warp();
  const unsigned bit = bit_of(current_);
  if ((step.mask & bit) == 0) fail("takes part in " + text(step) + ", in which it is not", step.where);
  if ((step.mask & mine.gone) != 0) {
    const std::string lost = std::to_string(std::countr_zero(step.mask & mine.gone));
    fail("waits in " + text(step) + " for lane " + lost + ", which has returned or never was", step.where);
  }
  if (mine.at_step != 0) refuse_step_of_others(step);
  me().step = &step;
  void** const arguments = &block_->arguments[warp_number(current_) * kWarpSize];
  arguments[current_ % kWarpSize] = argument;
  mine.at_step |= bit;
  if ((mine.at_step & step.mask) == step.mask) return arguments;
  go_on();
  return nullptr;
}

// Lanes that wait have to be in the same step, or in one whose mask is disjoint.
void Runner::refuse_step_of_others(const Step& step) {
  const Warp& mine = my_warp();
  const auto step_of = [this](ThreadId other) -> const Step& {
    return *block_->threads[static_cast<size_t>(number_in_block(other))].step;
  };
  const auto refuse = [&](ThreadId other) {
    fail("is in " + text(step) + ", but " + name(other) + " in " + text(step_of(other)), step.where);
  };
  if (const unsigned partners = mine.at_step & step.mask; partners != 0) {
    const ThreadId other = of_this_warp(std::countr_zero(partners));  // all partners are in the same step
    const Step& theirs = step_of(other);
    if (theirs.mask != step.mask || theirs.kind != step.kind || !same_place(theirs.where, step.where))
      refuse(other);
  }
  for (unsigned strangers = mine.at_step & ~step.mask; strangers != 0; strangers &= strangers - 1) {
    const ThreadId other = of_this_warp(std::countr_zero(strangers));
    if (step_of(other).mask & step.mask) refuse(other);
  }
}

void Runner::finish(const Step& step) {
  Warp& mine = my_warp();
  mine.at_step &= ~step.mask;
  mine.runnable |= step.mask;
  update_runnable(*block_, current_);
  if (observer != nullptr && (step.mask | mine.gone) == ~0U)
    observer->meet(block_rank(current_), static_cast<int>(warp_number(current_)), false);
  go_on();
}

// What kernels call most often stands in the same file as the scheduler, so that the compiler joins both.

int wait_for_block(bool flag, CallSite where) { return Runner::running()->wait_for_block(flag, where); }
void** gather(const Step& step, void* argument) { return Runner::running()->gather(step, argument); }
void finish(const Step& step) { Runner::running()->finish(step); }

}  // namespace kvbound::cuda::emulation
