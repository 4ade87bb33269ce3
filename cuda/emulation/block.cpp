#include "block.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "async_copies.hpp"
#include "bad_access.hpp"
#include "fiber.hpp"
#include "memory.hpp"
#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr int kMostWarps = kMostThreads / kWarpSize;
constexpr const char* kBarrier = "__syncthreads";

struct Thread {
  Fiber* fiber = nullptr;      // on which the thread waits
  const Step* step = nullptr;  // for which the thread waits; lies on its stack until then
  AsyncCopies copies;
};

// Sets of lanes.
struct Warp {
  unsigned runnable = 0;  // may continue or begin
  unsigned at_barrier = 0;
  unsigned at_step = 0;
  unsigned gone = 0;  // have returned, or do not exist
  unsigned begun = 0;
};

unsigned bit_of(int number) { return 1U << static_cast<unsigned>(number) % kWarpSize; }
size_t warp_number(int number) { return static_cast<size_t>(number) / kWarpSize; }

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int bound) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(bound) >> 32); }
  // A random member of the set.
  int of(unsigned set) {
    for (int skipped = below(std::popcount(set)); skipped > 0; --skipped) set &= set - 1;
    return std::countr_zero(set);
  }

 private:
  uint64_t state_;
};

// Thrown to unwind a kernel's thread after its fault has been recorded.
struct Failed {};

bool same_place(CallSite a, CallSite b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string text(CallSite where) { return std::string(where.file) + ":" + std::to_string(where.line); }

std::string text(uint3 index) {
  return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z) + ")";
}

std::string text(const Step& step) {
  std::string name = step.name;
  if (step.name != kBarrier) {
    name += " of mask 0x";
    for (int shift = 28; shift >= 0; shift -= 4) name += "0123456789abcdef"[step.mask >> shift & 15];
  }
  return name + " at " + text(step.where);
}

// Runs blocks, one after the other. Every thread of the operating system that runs blocks has one.
class Runner {
 public:
  static Runner& here() {
    thread_local const auto runner = std::make_unique<Runner>();
    return *runner;
  }

  Runner() : begun_for_(0, 0, 0) {}

  std::optional<Fault> run(const Grid& grid, uint64_t block);

  void record(const std::string& problem, CallSite where);
  [[noreturn]] void fail(const std::string& problem, CallSite where) {
    record(problem, where);
    throw Failed();
  }
  [[noreturn]] void leave() { Fiber::leave(*fiber_, main_); }
  int wait_for_block(bool flag, CallSite where);
  void** gather(const Step& step, void* argument);
  void finish(const Step& step);

  bool in_kernel() const { return current_ >= 0; }
  int lane() const { return static_cast<int>(static_cast<unsigned>(current_) % kWarpSize); }
  AsyncCopies& copies() { return thread(current_).copies; }
  bool eager_copies() const { return grid_->schedule.eager_copies; }
  SharedArena& shared() { return shared_; }
  const Fiber& fiber() const { return *fiber_; }

 private:
  static void run_threads();
  void prepare(uint64_t block);
  void name_threads();
  void drop_everything();

  Thread& thread(int number) { return threads_[number]; }
  const Thread& thread(int number) const { return threads_[number]; }
  Warp& warp_of(int number) { return warps_[warp_number(number)]; }
  const Warp& warp_of(int number) const { return warps_[warp_number(number)]; }
  std::string name(int number) const { return "thread " + text(names_[number]); }
  int of_this_warp(int lane) const { return current_ - this->lane() + lane; }

  int next();
  bool set_current(int number);
  void update_runnable(int number);
  void go_on();
  bool begin_another();
  Fiber& idle_fiber();
  void refuse_step_of_others(const Step& step);
  void refuse_to_return();
  bool waits(int number) const {
    return ((warp_of(number).at_barrier | warp_of(number).at_step) & bit_of(number)) != 0;
  }
  std::string first_gone() const;
  std::string first_at_barrier() const;
  std::string all_waits() const;
  CallSite first_wait() const;

  SignalGuard guard_;
  SharedArena shared_;
  std::array<Thread, kMostThreads> threads_;
  std::array<Warp, kMostWarps> warps_;
  std::array<uint3, kMostThreads> names_;
  std::array<void*, kMostThreads> arguments_;
  dim3 begun_for_;  // the block shape that names_ belong to

  Fiber main_;
  Fiber* fiber_ = &main_;  // the running one
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;

  const Grid* grid_ = nullptr;
  int count_ = 0;          // threads of the block
  int gone_ = 0;           // threads that have returned
  int at_barrier_ = 0;     // threads that wait at the barrier
  int flags_ = 0;          // threads at the barrier that passed true
  int last_flags_ = 0;     // flags_ of the last barrier
  CallSite barrier_;       // the barrier at which threads wait
  unsigned runnable_ = 0;  // warps with runnable lanes
  int current_ = -1;
  Random random_{0};
  std::optional<Fault> fault_;
};

constinit thread_local Runner* running = nullptr;

std::optional<Fault> Runner::run(const Grid& grid, uint64_t block) {
  grid_ = &grid;
  prepare(block);
  running = this;
  set_current(next());
  fiber_ = &idle_fiber();
  Fiber::change(main_, *fiber_);
  fiber_ = &main_;
  current_ = -1;
  if (fault_) {
    drop_everything();
  } else if (const auto overwritten = shared_.overwritten()) {
    fault_ = Fault{"block " + text(blockIdx) + ": " + *overwritten, {}};
  }
  return std::exchange(fault_, std::nullopt);
}

void Runner::prepare(uint64_t block) {
  const dim3 extent = grid_->grid;
  const auto x = static_cast<unsigned>(block % extent.x);
  const auto y = static_cast<unsigned>(block / extent.x % extent.y);
  const auto z = static_cast<unsigned>(block / extent.x / extent.y);
  blockIdx = {x, y, z};
  blockDim = grid_->block;
  gridDim = grid_->grid;
  name_threads();
  count_ = static_cast<int>(count(grid_->block));
  gone_ = at_barrier_ = flags_ = 0;
  const int warps = (count_ + kWarpSize - 1) / kWarpSize;
  for (int w = 0; w < warps; ++w) {
    const unsigned there = ~0U >> std::max(0, (w + 1) * kWarpSize - count_);
    warps_[w] = {.runnable = there, .gone = ~there};
  }
  runnable_ = ~0U >> (kMostWarps - warps);
  random_ = Random(Random(grid_->schedule.seed).next() + block);
  shared_.restart(grid_->shared_bytes);
}

void Runner::name_threads() {
  const dim3 block = grid_->block;
  if (block.x == begun_for_.x && block.y == begun_for_.y && block.z == begun_for_.z) return;
  begun_for_ = block;
  size_t number = 0;
  for (unsigned z = 0; z < block.z; ++z) {
    for (unsigned y = 0; y < block.y; ++y) {
      for (unsigned x = 0; x < block.x; ++x) names_[number++] = {x, y, z};
    }
  }
}

// Resets the fibers and copies after a fault: the block's threads never continue.
void Runner::drop_everything() {
  idle_.clear();
  for (const auto& fiber : fibers_) {
    fiber->restart();
    idle_.push_back(fiber.get());
  }
  for (Thread& each : threads_) each.copies.clear();
}

// The loop of every fiber: runs the current thread, then threads that have not begun, until a waiting one is to
// continue.
void Runner::run_threads() {
  Runner& runner = *running;
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
  Thread& me = thread(current_);
  if (const AsyncCopy* copy = me.copies.in_flight()) {
    fail("returns while an async copy is in flight that was issued at " + text(copy->where), copy->where);
  }
  me.copies.clear();
  if (at_barrier_ > 0) {
    fail("returns, while " + first_at_barrier() + " waits at __syncthreads at " + text(barrier_), barrier_);
  }
  Warp& mine = warp_of(current_);
  const unsigned bit = bit_of(current_);
  for (unsigned others = mine.at_step; others != 0; others &= others - 1) {
    const int other = of_this_warp(std::countr_zero(others));
    const Step& step = *thread(other).step;
    if (step.mask & bit) fail("returns, while " + name(other) + " waits for it in " + text(step), step.where);
  }
  mine.gone |= bit;
  ++gone_;
}

// Called by a fiber whose thread has returned: switches to the next thread, and returns true when this fiber is to
// begin another one.
bool Runner::begin_another() {
  const int following = next();
  if (following < 0 && gone_ < count_)
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

// The next thread by the schedule, of those that may continue or begin; -1 if there is none.
int Runner::next() {
  if (runnable_ == 0) return -1;
  const int here = current_ < 0 ? 0 : static_cast<int>(warp_number(current_));
  const bool stay = current_ >= 0 && (runnable_ >> here & 1) != 0;
  const auto pick = [this](unsigned set) {
    switch (grid_->schedule.seed) {
      case 0:
        return std::countr_zero(set);
      case 1:
        return kWarpSize - 1 - std::countl_zero(set);
      default:
        return random_.of(set);
    }
  };
  // Mostly the same warp continues, as on a GPU; at one wait in 16 another warp may.
  const bool move = grid_->schedule.seed > 1 && random_.below(16) == 0;
  const int warp = stay && !move ? here : pick(runnable_);
  return warp * kWarpSize + pick(warps_[warp].runnable);
}

// Makes the thread the current one. Returns whether it had begun before.
bool Runner::set_current(int number) {
  const unsigned bit = bit_of(number);
  Warp& warp = warp_of(number);
  const bool begun = (warp.begun & bit) != 0;
  warp.runnable &= ~bit;
  warp.begun |= bit;
  update_runnable(number);
  current_ = number;
  threadIdx = names_[number];
  return begun;
}

void Runner::update_runnable(int number) {
  const unsigned bit = 1U << warp_number(number);
  runnable_ = warp_of(number).runnable != 0 ? runnable_ | bit : runnable_ & ~bit;
}

// Called by a thread that has registered its wait: switches to the next thread, and returns when this one is to
// continue.
void Runner::go_on() {
  const int following = next();
  if (following < 0) fail("waits, and no thread can go on: " + all_waits(), first_wait());
  const int me = current_;
  Fiber& mine = *fiber_;
  const bool begun = set_current(following);
  if (following == me) return;
  thread(me).fiber = &mine;
  fiber_ = begun ? thread(following).fiber : &idle_fiber();
  Fiber::change(mine, *fiber_);
}

int Runner::wait_for_block(bool flag, CallSite where) {
  if (gone_ > 0) fail("waits at __syncthreads, but " + first_gone() + " has returned", where);
  if (at_barrier_ > 0 && !same_place(barrier_, where)) {
    fail("waits at __syncthreads at " + text(where) + ", but " + first_at_barrier() + " at " + text(barrier_),
         where);
  }
  barrier_ = where;
  const Step step{kBarrier, ~0U, nullptr, where};
  thread(current_).step = &step;
  warp_of(current_).at_barrier |= bit_of(current_);
  flags_ += flag ? 1 : 0;
  if (++at_barrier_ == count_) {
    for (int first = 0; first < count_; first += kWarpSize) {
      Warp& warp = warp_of(first);
      warp.runnable |= std::exchange(warp.at_barrier, 0);
      update_runnable(first);
    }
    at_barrier_ = 0;
    last_flags_ = std::exchange(flags_, 0);
  }
  go_on();
  return last_flags_;
}

void** Runner::gather(const Step& step, void* argument) {
  Warp& mine = warp_of(current_);
  const unsigned bit = bit_of(current_);
  if ((step.mask & bit) == 0) fail("takes part in " + text(step) + ", in which it is not", step.where);
  if ((step.mask & mine.gone) != 0) {
    const std::string lost = std::to_string(std::countr_zero(step.mask & mine.gone));
    fail("waits in " + text(step) + " for lane " + lost + ", which has returned or never was", step.where);
  }
  if (mine.at_step != 0) refuse_step_of_others(step);
  thread(current_).step = &step;
  arguments_[current_] = argument;
  mine.at_step |= bit;
  if ((mine.at_step & step.mask) == step.mask) return &arguments_[of_this_warp(0)];
  go_on();
  return nullptr;
}

// Lanes that wait have to be in the same step, or in one whose mask is disjoint.
void Runner::refuse_step_of_others(const Step& step) {
  const Warp& mine = warp_of(current_);
  const auto refuse = [&](int other) {
    fail("is in " + text(step) + ", but " + name(other) + " in " + text(*thread(other).step), step.where);
  };
  if (const unsigned partners = mine.at_step & step.mask; partners != 0) {
    const int other = of_this_warp(std::countr_zero(partners));  // all partners are in the same step
    const Step& theirs = *thread(other).step;
    if (theirs.mask != step.mask || theirs.kind != step.kind || !same_place(theirs.where, step.where))
      refuse(other);
  }
  for (unsigned strangers = mine.at_step & ~step.mask; strangers != 0; strangers &= strangers - 1) {
    const int other = of_this_warp(std::countr_zero(strangers));
    if (thread(other).step->mask & step.mask) refuse(other);
  }
}

void Runner::finish(const Step& step) {
  Warp& mine = warp_of(current_);
  mine.at_step &= ~step.mask;
  mine.runnable |= step.mask;
  update_runnable(current_);
  go_on();
}

void Runner::record(const std::string& problem, CallSite where) {
  fault_ = Fault{"block " + text(blockIdx) + ", " + name(current_) + " " + problem, where};
}

std::string Runner::first_gone() const {
  for (int number = 0; number < count_; ++number) {
    if (warp_of(number).gone & bit_of(number)) return name(number);
  }
  return "none";
}

std::string Runner::first_at_barrier() const {
  for (int number = 0; number < count_; ++number) {
    if (warps_[number / kWarpSize].at_barrier >> number % kWarpSize & 1) return name(number);
  }
  return "none";
}

CallSite Runner::first_wait() const {
  for (int number = 0; number < count_; ++number) {
    if (waits(number)) return thread(number).step->where;
  }
  return {};
}

std::string Runner::all_waits() const {
  struct Crowd {
    int first = 0;
    int count = 0;
  };
  std::map<std::string, Crowd> crowds;  // by the step for which the threads wait
  for (int number = 0; number < count_; ++number) {
    if (!waits(number)) continue;
    Crowd& crowd = crowds[text(*thread(number).step)];
    if (crowd.count++ == 0) crowd.first = number;
  }
  std::string all = std::to_string(gone_) + " have returned";
  for (const auto& [what, crowd] : crowds) {
    all += "; " + std::to_string(crowd.count) + " from " + name(crowd.first) + " on wait at " + what;
  }
  return all;
}

}  // namespace

std::optional<Fault> run_block(const Grid& grid, uint64_t block) { return Runner::here().run(grid, block); }

bool in_kernel() { return running != nullptr && running->in_kernel(); }
void fail(const std::string& problem, CallSite where) { running->fail(problem, where); }

void fail_for_good(std::string (*problem)()) {
  running->record(problem(), {});  // its temporaries are destroyed before leave(), which never returns
  running->leave();
}

bool stack_overflown_at(const void* address) { return running->fiber().overflown_at(address); }
std::byte* clear_stack() { return running->fiber().clear(); }

std::string place_in_memory(const void* address) {
  return running->shared().place(address).value_or(place_in_device_memory(address));
}

int wait_for_block(bool flag, CallSite where) { return running->wait_for_block(flag, where); }
void** gather(const Step& step, void* argument) { return running->gather(step, argument); }
void finish(const Step& step) { running->finish(step); }
int lane() { return running->lane(); }

void* shared_array(int number, int64_t offset, int64_t bytes, int64_t alignment, CallSite where) {
  std::string problem;
  void* const array = running->shared().array(number, offset, bytes, alignment, problem);
  if (array == nullptr) fail(problem, where);
  return array;
}

void require_shared(const void* memory, int64_t bytes, int64_t alignment, const char* name, CallSite where) {
  if (!running->shared().holds(memory, bytes)) {
    fail(std::string(name) + " accesses " + place_in_memory(memory) + ", which is outside shared memory",
         where);
  }
  if (reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(alignment) != 0) {
    fail(std::string(name) + " accesses " + place_in_memory(memory) + ", which is misaligned", where);
  }
}

void copy_async(void* shared, const void* global, int bytes, CallSite where) {
  require_shared(shared, 16, 16, "cp.async", where);
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) fail("cp.async reads from a misaligned address", where);
  if (bytes < 0 || bytes > 16) fail("cp.async copies " + std::to_string(bytes) + " bytes", where);
  if (bytes > 0) {  // inaccessible memory is a fault of the copy, not of the wait
    static_cast<void>(*static_cast<const volatile std::byte*>(global));
    static_cast<void>(static_cast<const volatile std::byte*>(global)[bytes - 1]);
  }
  running->copies().issue({shared, global, bytes, where}, running->eager_copies());
}

void commit_copies() { running->copies().commit(); }
void wait_for_copies(int in_flight) { running->copies().wait(in_flight, running->eager_copies()); }

}  // namespace kvbound::cuda::emulation
