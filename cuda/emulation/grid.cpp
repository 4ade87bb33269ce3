#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include <omp.h>

#include <kvbound/reference/core/error.hpp>

#include "block.hpp"
#include "memory.hpp"

namespace kvbound::cuda::emulation {
namespace {

// Every fiber takes two of the 65,530 mappings that Linux grants a process.
constexpr int64_t kMostFibers = 16384;

void require_launchable(const Grid& grid, CallSite where) {
  const auto refuse = [&](const std::string& problem) {
    throw DeviceError(std::string("launch in ") + where.function, problem, where.file, where.line);
  };
  if (in_kernel()) refuse("a kernel launches a kernel");
  constexpr unsigned kMost = 65535;
  if (count(grid.grid) == 0 || grid.grid.x > std::numeric_limits<int>::max() || grid.grid.y > kMost ||
      grid.grid.z > kMost) {
    refuse("invalid grid " + std::to_string(grid.grid.x) + " x " + std::to_string(grid.grid.y) + " x " +
           std::to_string(grid.grid.z));
  }
  if (count(grid.block) == 0 || grid.block.x > kMostThreads || grid.block.y > kMostThreads ||
      grid.block.z > 64 || count(grid.block) > kMostThreads) {
    refuse("invalid block " + std::to_string(grid.block.x) + " x " + std::to_string(grid.block.y) + " x " +
           std::to_string(grid.block.z));
  }
  const dim3 cluster = grid.cluster;
  if (count(cluster) == 0 || count(cluster) > kMostBlocksOfCluster || grid.grid.x % cluster.x != 0 ||
      grid.grid.y % cluster.y != 0 || grid.grid.z % cluster.z != 0) {
    refuse("invalid cluster " + std::to_string(cluster.x) + " x " + std::to_string(cluster.y) + " x " +
           std::to_string(cluster.z) + " of a grid " + std::to_string(grid.grid.x) + " x " +
           std::to_string(grid.grid.y) + " x " + std::to_string(grid.grid.z));
  }
  if (const int64_t most = shared_memory_limit(); grid.shared_bytes < 0 || grid.shared_bytes > most) {
    refuse(std::to_string(grid.shared_bytes) + " bytes of shared memory, the most are " +
           std::to_string(most));
  }
}

// The order in which clusters of blocks begin: position -> cluster. The first ones of an observed launch are
// evenly spread over the grid, however many they are.
class ClusterOrder {
 public:
  ClusterOrder(const Grid& grid, bool spread)
      : count_(count(grid.grid) / count(grid.cluster)), descending_(grid.schedule.seed == 1) {
    if (spread) stride_ = golden_stride(count_);
    if (spread || grid.schedule.seed <= 1) return;
    shuffled_.resize(count_);
    std::iota(shuffled_.begin(), shuffled_.end(), uint64_t{0});
    std::shuffle(shuffled_.begin(), shuffled_.end(), std::mt19937_64(grid.schedule.seed));
  }
  uint64_t count_of_clusters() const { return count_; }
  uint64_t operator[](uint64_t position) const {
    if (stride_ > 0) return position * stride_ % count_;
    if (!shuffled_.empty()) return shuffled_[position];
    return descending_ ? count_ - 1 - position : position;
  }

 private:
  // A number without a common divisor with `count`, near its golden section.
  static uint64_t golden_stride(uint64_t count) {
    constexpr double kGoldenSection = 0.6180339887498949;
    auto stride = std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(count) * kGoldenSection));
    while (std::gcd(stride, count) > 1) ++stride;
    return stride;
  }

  uint64_t count_;
  bool descending_;
  uint64_t stride_ = 0;  // 0: the schedule's order
  std::vector<uint64_t> shuffled_;
};

// The fault with the first position in the order, whichever thread reports its fault first.
class FirstFault {
 public:
  bool before(uint64_t position) const { return position_.load(std::memory_order_relaxed) < position; }
  void add(uint64_t position, Fault fault) {
    const std::lock_guard lock(mutex_);
    if (before(position)) return;
    position_ = position;
    fault_ = std::move(fault);
  }
  const std::optional<Fault>& get() const { return fault_; }

 private:
  std::mutex mutex_;
  std::atomic<uint64_t> position_ = std::numeric_limits<uint64_t>::max();
  std::optional<Fault> fault_;
};

// Runs the clusters at positions from..to - 1 of the order.
void run_clusters(const Grid& grid, const ClusterOrder& order, uint64_t from, uint64_t to,
                  LaunchObserver* observing, FirstFault& first) {
  const auto most_threads = static_cast<uint64_t>(
      std::max(kMostFibers / static_cast<int64_t>(count(grid.block) * count(grid.cluster)), int64_t{1}));
  const auto threads =
      static_cast<int>(std::min({static_cast<uint64_t>(omp_get_max_threads()), to - from, most_threads}));
  std::atomic<uint64_t> next = from;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const std::unique_ptr<Observer> watching = observing ? observing->of_this_thread() : nullptr;
    for (uint64_t position = next++; position < to && !first.before(position); position = next++) {
      try {
        if (auto fault = run_cluster(grid, order[position], watching.get()))
          first.add(position, std::move(*fault));
      } catch (const std::exception& error) {  // out of memory for a fiber
        first.add(position, {error.what(), {}});
      }
    }
  }
}

std::atomic<Observe> observing_launches = nullptr;

}  // namespace

void watch_launches(Observe observe) { observing_launches = observe; }

void run_grid(const Grid& grid, CallSite where) {
  require_launchable(grid, where);
  const Observe observe = grid.kernel.counted ? observing_launches.load() : nullptr;
  const std::unique_ptr<LaunchObserver> observing = observe ? observe(grid) : nullptr;
  const ClusterOrder order(grid, observing != nullptr);
  FirstFault first;
  const uint64_t all = order.count_of_clusters();
  for (uint64_t run = 0; run < all && !first.get();) {
    const uint64_t to = observing ? std::min(all, run + observing->batch()) : all;
    run_clusters(grid, order, run, to, observing.get(), first);
    run = to;
    if (observing && observing->suffices(run, all)) break;
  }
  const std::string call = std::string("kernel launched by ") + where.function + " at " + where.file + ":" +
                           std::to_string(where.line);
  if (const std::optional<Fault>& fault = first.get()) {
    const CallSite place = fault->where.file == nullptr ? where : fault->where;
    static_cast<void>(overwritten_canaries());  // further damage is not reported
    throw DeviceError(call, fault->message, place.file, place.line);
  }
  if (const auto overwritten = overwritten_canaries())
    throw DeviceError(call, *overwritten, where.file, where.line);
}

}  // namespace kvbound::cuda::emulation
