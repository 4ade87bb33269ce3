// The emulation reports wrong uses of wgmma: a kernel with a template of faults, correct
// while all are turned off.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/proxy_fence.hpp>
#include <kvbound/cuda/primitives/warpgroup_mma.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "support/device_test.hpp"
#include "support/emulation_faults.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kRows = 64;      // of A
constexpr int kRowsOfB = 128;  // B is stored as its transpose
constexpr int kColumns = 64;   // of both: four steps
constexpr int kStride = 1024;
constexpr int kUnbegun = -1;

struct Faults {
  bool no_fence = false;
  bool no_proxy_fence = false;
  bool no_barrier = false;
  bool no_commit = false;
  bool no_wait = false;
  bool wait_too_short = false;
  bool used_before_wait = false;
  bool sums_written_in_flight = false;
  bool tile_written_in_flight = false;
  bool other_place_in_one_warp = false;
  bool other_columns_in_one_warp = false;
  int missing_warp = kUnbegun;
  int bytes_of_step = 32;
  int stride = kStride;
  uint64_t more_bits = 0;  // of the descriptor
};

__device__ void write_tile(Bfloat16* tile, int rows, int seed) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * kColumns; i += static_cast<int>(blockDim.x)) {
    const int row = i / kColumns;
    const int column = i % kColumns;
    const auto number = static_cast<float>((row * 3 + column * 5 + seed) % 11 - 5);
    tile[swizzled(row * 128 + column * 2) / 2] = to_storage<Bfloat16>(number);
  }
}

struct Shared {
  Bfloat16* a;
  Bfloat16* b;

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : a(memory.array<Bfloat16>(kRows * kColumns, 1024)),
        b(memory.array<Bfloat16>(kRowsOfB * kColumns, 1024)) {}
};

__device__ void multiply(const Shared& shared, float (&sums)[kWarpgroupSums], const Faults& faults) {
  const int my_warp = warp();
  for (int step = 0; step < 4; ++step) {
    const uint64_t a = matrix_descriptor(shared.a + 16 * step, kStride);
    uint64_t b =
        matrix_descriptor(shared.b, faults.stride) + static_cast<uint64_t>(step * faults.bytes_of_step / 16);
    if (faults.other_columns_in_one_warp && my_warp == 2) b ^= 2;
    if (faults.other_place_in_one_warp && my_warp == 2) {
      warpgroup_mma<Bfloat16>(sums, a, b | faults.more_bits, step > 0);
    } else {
      warpgroup_mma<Bfloat16>(sums, a, b | faults.more_bits, step > 0);
    }
    if (faults.sums_written_in_flight && step == 1) sums[5] = 0;
  }
}

__global__ void product_kernel(Faults faults, float* found) {
  SharedMemory memory;
  const Shared shared(memory);
  write_tile(shared.a, kRows, 1);
  write_tile(shared.b, kRowsOfB, 2);
  if (!faults.no_proxy_fence) fence_async_proxy();
  if (!faults.no_barrier) __syncthreads();
  float sums[kWarpgroupSums] = {};
  if (warp() == faults.missing_warp) return;
  if (!faults.no_fence) warpgroup_fence(sums);
  multiply(shared, sums, faults);
  if (!faults.no_commit) warpgroup_commit();
  if (faults.used_before_wait) {
    for (int i = 0; i < kWarpgroupSums; ++i)
      found[static_cast<int>(threadIdx.x) * kWarpgroupSums + i] = sums[i];
  }
  if (faults.tile_written_in_flight) write_tile(shared.b, kRowsOfB, 3);
  if (faults.wait_too_short) warpgroup_wait<1>(sums);
  if (!faults.no_wait) warpgroup_wait<0>(sums);
  if (faults.used_before_wait) return;
  for (int i = 0; i < kWarpgroupSums; ++i)
    found[static_cast<int>(threadIdx.x) * kWarpgroupSums + i] = sums[i];
}

std::vector<float> expected_sums() {
  std::vector<float> sums(kRows * kRowsOfB);
  const auto number = [](int row, int column, int seed) { return (row * 3 + column * 5 + seed) % 11 - 5; };
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kRowsOfB; ++column) {
      int sum = 0;
      for (int k = 0; k < kColumns; ++k) sum += number(row, k, 1) * number(column, k, 2);
      const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
      const int i = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
      sums[static_cast<size_t>(thread * kWarpgroupSums + i)] = static_cast<float>(sum);
    }
  }
  return sums;
}

struct Outcome {
  std::string fault;
  std::vector<float> sums;

  bool right() const { return fault.empty() && sums == expected_sums(); }
};

Outcome product(const Faults& faults, int threads = 128) {
  Buffer<float> sums(kWarpgroupSums * threads);
  Outcome outcome;
  outcome.fault = fault_of(
      [&] { launch<product_kernel>(shape(1, threads, shared_bytes<Shared>()), faults, sums.data()); });
  outcome.sums = download(sums);
  return outcome;
}

void expect_fault(const Faults& faults, const std::vector<std::string>& words) {
  under_every_schedule([&] { expect_words(product(faults).fault, words); });
}

void expect_wrong(const Faults& faults) {
  under_every_schedule([&] { EXPECT_FALSE(product(faults).right()); });
}

TEST(WarpgroupMmaFaults, NoneIsFoundInACorrectProduct) {
  under_every_schedule([&] {
    const Outcome outcome = product({});
    EXPECT_TRUE(outcome.right()) << outcome.fault;
  });
}

TEST(WarpgroupMmaFaults, AMissingFenceIsReported) {
  expect_fault({.no_fence = true}, {"wgmma begins sums with no wgmma.fence"});
}

TEST(WarpgroupMmaFaults, SharedMemoryThatNoProxyFenceHasShownIsReported) {
  expect_fault({.no_proxy_fence = true},
               {"wgmma reads shared memory that was written with no fence.proxy.async"});
}

// Warps go on without each other: with no barrier one reads what the others have not written, or not yet
// shown; unless the schedule lets it come last, as that of seed 3 does.
TEST(WarpgroupMmaFaults, AMissingBarrierBetweenWarpsShows) {
  for (const uint64_t seed : {0, 1, 2}) {
    for (const bool eager : {false, true}) {
      const emulation::ScopedSchedule schedule({seed, eager});
      EXPECT_FALSE(product({.no_barrier = true}).right()) << seed << (eager ? ", eager" : ", lazy");
    }
  }
}

TEST(WarpgroupMmaFaults, SumsAreNanUntilTheyAreWaitedFor) {
  under_every_schedule([&] {
    const Outcome outcome = product({.used_before_wait = true});
    EXPECT_EQ(outcome.fault, "");
    for (const float sum : outcome.sums) EXPECT_TRUE(std::isnan(sum));
  });
}

TEST(WarpgroupMmaFaults, AMissingOrShortWaitIsReported) {
  expect_fault({.no_wait = true}, {"returns while the wgmma issued at", "is in flight"});
  expect_fault({.wait_too_short = true}, {"names sums that are still in flight behind wgmma.wait_group"});
  expect_fault({.no_commit = true}, {"names sums that are still in flight behind wgmma.wait_group"});
}

TEST(WarpgroupMmaFaults, SumsThatAreWrittenInFlightAreReported) {
  expect_fault({.sums_written_in_flight = true}, {"wgmma adds to sums that were written while in flight"});
}

TEST(WarpgroupMmaFaults, LazyProductsShowATileThatIsWrittenInFlight) {
  const emulation::ScopedSchedule lazy({0, false});
  EXPECT_FALSE(product({.tile_written_in_flight = true}).right());
}

TEST(WarpgroupMmaFaults, AWrongDescriptorGivesWrongSumsOrAFault) {
  expect_wrong({.bytes_of_step = 16});
  expect_wrong({.bytes_of_step = 64});
  expect_wrong({.stride = 512});
  expect_wrong({.stride = 128});
  expect_fault({.stride = 2048}, {"wgmma reads row", "of shared memory, in no array"});
  expect_fault({.more_bits = uint64_t{1} << 49}, {"base offset"});
  expect_fault({.more_bits = uint64_t{1} << 15}, {"reserved bits"});
  expect_fault({.more_bits = uint64_t{2} << 62}, {"another swizzle"});  // with that of 128 bytes: 32 bytes
}

TEST(WarpgroupMmaFaults, AllFourWarpsTakeTheSameSteps) {
  for (const int missing : {0, 1, 3}) {
    expect_fault({.missing_warp = missing}, {"wgmma at"});
  }
  expect_fault({.other_place_in_one_warp = true}, {"but another warp of its warpgroup in wgmma"});
  expect_fault({.other_columns_in_one_warp = true}, {"or with other operands"});
  under_every_schedule(
      [&] { expect_words(product({}, 96).fault, {"in the last warps of a block, which are not four"}); });
}

// Registers of A.

__global__ void rows_kernel(bool no_wait, bool no_fence, float* found) {
  SharedMemory memory;
  Bfloat16* const b = memory.array<Bfloat16>(kRowsOfB * kColumns, 1024);
  write_tile(b, kRowsOfB, 2);
  fence_async_proxy();
  __syncthreads();
  uint32_t rows[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
  float sums[kWarpgroupSums] = {};
  for (int step = 0; step < 2; ++step) {
    if (step == 0 || !no_fence) warpgroup_fence(sums);
    warpgroup_mma<Bfloat16>(sums, rows, matrix_descriptor(b, kStride));
    warpgroup_commit();
    if (!no_wait) warpgroup_wait<0>(sums);
    for (uint32_t& each : rows) each = 0x40004000;
  }
  if (no_wait) warpgroup_wait<0>(sums);
  found[threadIdx.x] = sums[0];
}

TEST(WarpgroupMmaFaults, RegistersOfAThatAreWrittenInFlightAreReported) {
  const auto fault = [](bool no_wait, bool no_fence) {
    Buffer<float> found(128);
    return fault_of([&] {
      launch<rows_kernel>(shape(1, 128, kRowsOfB * kColumns * 2), no_wait, no_fence, found.data());
    });
  };
  under_every_schedule([&] {
    EXPECT_EQ(fault(false, false), "");
    expect_words(fault(true, false), {"registers of A that were written while the wgmma issued at"});
    expect_words(fault(false, true), {"with no wgmma.fence behind the last wait"});
  });
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
