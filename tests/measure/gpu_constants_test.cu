// What the roofline model needs to know of a GPU (sim/roofline/*.json), measured: of a GPU alone,
// because the emulation has no clock. Each line is a constant's name, its value and its unit; how it was
// measured stands in parentheses.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/cluster.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/memory_pool.hpp>
#include <kvbound/cuda/support/recording.hpp>
#include <kvbound/cuda/support/timer.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class GpuConstants : public HopperTest {};

constexpr int kSteps = 1000;

void show(const char* constant, double value, const char* unit, const char* how) {
  std::printf("%s: %.4g %s (%s)\n", constant, value, unit, how);
  EXPECT_GT(value, 0) << constant;
}

double median(int times, const std::function<double()>& measure) {
  std::vector<double> found(times);
  std::ranges::generate(found, measure);
  std::ranges::nth_element(found, found.begin() + times / 2);
  return found[times / 2];
}

// The device's time of what is queued.
double device_seconds(const std::function<void()>& queue) {
  Timer timer;
  timer.start(nullptr);
  queue();
  timer.stop(nullptr);
  return timer.seconds();
}

// The host's time.
double host_seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---- latencies: kSteps, each of which needs the result of the one before ----------------------------------

struct Measured {
  long long* clocks;  // of the first thread, for all steps
  unsigned* result;   // [32], so that nothing is left out
};

struct Chain {
  Measured measured;

  // begin() is to be called before the steps, end() behind them.
  __device__ long long begin() const { return clock64(); }
  __device__ void end(long long begin, unsigned last) const {
    if (blockIdx.x == 0 && threadIdx.x == 0) *measured.clocks = clock64() - begin;
    measured.result[threadIdx.x % 32] = last;
  }
};

__global__ void device_chain(const unsigned* next, unsigned first, Chain chain) {
  unsigned at = first;
  const long long begin = chain.begin();
  for (int i = 0; i < kSteps; ++i) at = __ldcg(next + at);
  chain.end(begin, at);
}

__global__ void shared_chain(Chain chain) {
  SharedMemory memory;
  unsigned* const next = memory.array<unsigned>(1024);
  for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) next[i] = (i + 17) % 1024;
  __syncthreads();
  unsigned at = 0;
  const long long begin = chain.begin();
  for (int i = 0; i < kSteps; ++i) at = next[at];
  chain.end(begin, at);
}

__global__ void shuffle_chain(Chain chain) {
  unsigned at = threadIdx.x;
  const long long begin = chain.begin();
  for (int i = 0; i < kSteps; ++i) at = __shfl_sync(~0u, at, static_cast<int>(at));
  chain.end(begin, at);
}

__global__ void atomic_chain(Chain chain) {
  SharedMemory memory;
  unsigned* const cells = memory.array<unsigned>(32);
  cells[threadIdx.x] = threadIdx.x;
  unsigned at = threadIdx.x;
  const long long begin = chain.begin();
  for (int i = 0; i < kSteps; ++i) at = atomicAdd(cells + at, 0u);
  chain.end(begin, at);
}

__global__ void barrier_chain(Chain chain) {
  __syncthreads();
  const long long begin = chain.begin();
  for (int i = 0; i < kSteps; ++i) __syncthreads();
  chain.end(begin, 0);
}

__global__ void cluster_barrier_chain(Chain chain) {
  cluster_sync();
  const long long begin = chain.begin();
  for (int i = 0; i < kSteps; ++i) cluster_sync();
  chain.end(begin, 0);
}

// Clocks of one step of what is launched.
double clocks_of(const std::function<void(Chain)>& launched) {
  Buffer<long long> clocks(1);
  Buffer<unsigned> result(32);
  launched({{clocks.data(), result.data()}});
  return static_cast<double>(download(clocks).front()) / kSteps;
}

// Places in a random order that goes through all of them, 4 kB apart.
std::vector<unsigned> random_cycle(size_t bytes) {
  constexpr size_t kApart = 1024;
  std::vector<unsigned> order(bytes / sizeof(unsigned) / kApart);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::shuffle(order, std::mt19937(1));
  std::vector<unsigned> next(bytes / sizeof(unsigned));
  for (size_t i = 0; i < order.size(); ++i) {
    next[order[i] * kApart] = order[(i + 1) % order.size()] * static_cast<unsigned>(kApart);
  }
  return next;
}

TEST_F(GpuConstants, Latencies) {
  const std::vector<unsigned> cycle = random_cycle(size_t{512} << 20);
  const Buffer<unsigned> next = upload(cycle);
  unsigned first = 0;
  const auto chase = [&](Chain chain) {
    launch<device_chain>({dim3(1), dim3(1), 0, nullptr}, next.data(), first, chain);
  };
  const double cold = clocks_of(chase);
  show("device_latency", cold, "clocks", "loads that miss the L2 cache, one thread");
  show("L2 latency", clocks_of(chase), "clocks", "the same places again");
  show("shared_latency", clocks_of([](Chain chain) {
         launch<shared_chain>({dim3(1), dim3(32), 4096, nullptr}, chain);
       }),
       "clocks", "of a load and its address");
  show("exchange_latency", clocks_of([](Chain chain) {
         launch<shuffle_chain>({dim3(1), dim3(32), 0, nullptr}, chain);
       }),
       "clocks", "of a shuffle");
  show("atomic_latency", clocks_of([](Chain chain) {
         launch<atomic_chain>({dim3(1), dim3(32), 128, nullptr}, chain);
       }),
       "clocks", "of an atomic in shared memory and its address");
}

TEST_F(GpuConstants, Barriers) {
  const auto block = [](unsigned threads) {
    return clocks_of([threads](Chain chain) {
      launch<barrier_chain>({dim3(1), dim3(threads), 0, nullptr}, chain);
    });
  };
  const auto cluster = [](unsigned threads) {
    return clocks_of([threads](Chain chain) {
      const LaunchShape shape(dim3(8), dim3(threads), 0, nullptr);
      launch<cluster_barrier_chain>(shape.in_clusters(dim3(8)), chain);
    });
  };
  constexpr double kMoreWarps = (1024 - 128) / 32;
  const double of_warp = (block(1024) - block(128)) / kMoreWarps;
  show("barrier_latency_of_warp", of_warp, "clocks", "32 warps against 4");
  show("barrier_latency", block(128) - 4 * of_warp, "clocks", "4 warps, less theirs");
  const double of_cluster_warp = (cluster(1024) - cluster(128)) / kMoreWarps;
  show("cluster_barrier_latency_of_warp", of_cluster_warp, "clocks", "32 warps against 4, eight blocks");
  show("cluster_barrier_latency", cluster(128) - 4 * of_cluster_warp, "clocks", "4 warps, less theirs");
}

// ---- rates ------------------------------------------------------------------------------------------------

__global__ void spin(long long clocks, long long* nanoseconds) {
  long long begin = 0, end = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  for (const long long start = clock64(); clock64() - start < clocks;) {
  }
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
  *nanoseconds = end - begin;
}

__global__ void read(const uint4* numbers, int64_t count, int rounds, uint4* result) {
  constexpr int kAtOnce = 4;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint4 found{};
  for (int round = 0; round < rounds; ++round) {
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += kAtOnce * step) {
      uint4 loaded[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) loaded[k] = __ldcg(numbers + min(i + k * step, count - 1));
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) found.x ^= loaded[k].x ^ loaded[k].y ^ loaded[k].z ^ loaded[k].w;
    }
  }
  if (found.x == 1) *result = found;  // never, and the compiler doesn't know it
}

TEST_F(GpuConstants, Rates) {
  constexpr long long kClocks = 50'000'000;
  Buffer<long long> nanoseconds(1);
  launch<spin>({dim3(132), dim3(128), 0, nullptr}, kClocks, nanoseconds.data());
  show("clock", kClocks / (1e-9 * static_cast<double>(download(nanoseconds).front())), "Hz", "with no work");
  constexpr int64_t kBytes = 16 << 20;
  constexpr int kRounds = 100;
  Buffer<uint4> numbers(kBytes / 16), result(1);
  numbers.clear(nullptr);
  const double seconds = median(9, [&] {
    return device_seconds([&] {
      launch<read>({dim3(132 * 4), dim3(512), 0, nullptr}, static_cast<const uint4*>(numbers.data()),
                   numbers.size(), kRounds, result.data());
    });
  });
  show("l2_bandwidth", kBytes * kRounds / seconds, "bytes/s", "16 MB read again and again");
}

// ---- clusters ---------------------------------------------------------------------------------------------

// How many clusters of so many blocks, each with so much shared memory, are resident
// together; 0 if none can be.
int clusters_that_fit(unsigned blocks, unsigned shared) {
  constexpr unsigned kMostClusters = 132;
  const auto kernel = reinterpret_cast<const void*>(&shared_chain);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), cudaSuccess);
  EXPECT_EQ(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
      cudaSuccess);
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kMostClusters * blocks);
  config.blockDim = dim3(128);
  config.dynamicSmemBytes = shared;
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  EXPECT_EQ(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), cudaSuccess) << blocks << " blocks";
  return clusters;
}

TEST_F(GpuConstants, ClustersThatFit) {
  int whole = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&whole, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), cudaSuccess);
  for (const unsigned blocks : {2U, 4U, 8U, 16U}) {
    const std::string name = "clusters of " + std::to_string(blocks);
    show(name.c_str(), clusters_that_fit(blocks, static_cast<unsigned>(whole)), "together",
         "blocks of a whole multiprocessor");
    show(name.c_str(), clusters_that_fit(blocks, 1 << 15), "together", "blocks with 32 kB");
  }
}

// ---- launches, waits and copies ---------------------------------------------------------------------------

__global__ void touch(int* numbers) { numbers[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

// A graph of so many small kernels.
class Kernels {
 public:
  explicit Kernels(int count) : count_(count) { run(), run(), run(); }
  void run() {
    graph_.run(nullptr, [this](Stream stream) {
      for (int i = 0; i < count_; ++i) launch<touch>({dim3(132), dim3(128), 0, stream}, numbers_.data());
    });
  }

 private:
  int count_;
  Buffer<int> numbers_{132 * 128};
  Recording graph_;
};

// The device's time of one graph, of many behind each other.
double seconds_of(Kernels& graph) {
  constexpr int kGraphs = 20;
  return median(21,
                [&] {
                  return device_seconds([&] {
                    for (int i = 0; i < kGraphs; ++i) graph.run();
                  });
                }) /
         kGraphs;
}

// The host's time of what it queues and waits for.
double waited_seconds(const std::function<void()>& queue) {
  return median(51, [&] {
    return host_seconds([&] {
      queue();
      synchronise(nullptr);
    });
  });
}

TEST_F(GpuConstants, LaunchesWaitsAndCopies) {
  Kernels one(1), many(16);
  const double first = seconds_of(one);
  show("first_launch", first, "s", "a graph of one kernel, one of 20");
  show("next_launch", (seconds_of(many) - first) / 15, "s", "each further kernel of a graph");
  const double wait = waited_seconds([&] { one.run(); }) - first;
  show("host_wait", wait, "s", "until the host goes on, less the graph of one kernel");

  constexpr int64_t kFew = 12288, kMany = 64 << 20;
  MemoryPool pool(nullptr);
  std::byte* const page_locked = pool.stage(kMany);
  Buffer<std::byte> numbers(kMany);
  const auto copied = [&](int64_t bytes) {
    return waited_seconds([&] { detail::queue_to_device(numbers.data(), page_locked, bytes, nullptr); });
  };
  show("host_copy", copied(kFew) - wait, "s", "12 kB to the device, less the wait");
  show("host_bandwidth", kMany / copied(kMany), "bytes/s", "64 MB of page-locked memory to the device");
  pool.wait();
}

TEST_F(GpuConstants, Allocations) {
  void* memory = nullptr;
  const double seconds = median(21, [&] {
    const double taken = host_seconds([&] { memory = detail::allocate(1 << 20, 1 << 20); });
    detail::release(memory);
    return taken;
  });
  show("allocation", seconds, "s", "cudaMalloc of 1 MB");
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
