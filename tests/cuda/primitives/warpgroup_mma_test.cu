// How a warpgroup's tensor cores interpret registers and shared memory: every index of A, B and the sums.
#include <cstdlib>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/proxy_fence.hpp>
#include <kvbound/cuda/primitives/tensor_load.hpp>
#include <kvbound/cuda/primitives/warpgroup_mma.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class WarpgroupMma : public HopperTest {};

constexpr int kThreads = 128;
constexpr int kRows = 64;
constexpr int kDepth = 16;
constexpr int kN = 128;

/// How a matrix of 16-bit numbers, k innermost, lies in shared memory: four steps of 16 columns. Behind each
/// group of eight rows there is room for another, so that the stride is not that of boxes.
struct TileLayout {
  static constexpr int kSteps = 4;
  static constexpr int kColumns = kDepth * kSteps;
  static constexpr int kStride = 2048;

  __device__ static int64_t place(int row, int column) {
    return swizzled(row / 8 * kStride + row % 8 * kSwizzleSpan + column * 2);
  }
  __device__ static uint64_t descriptor(const void* tile, int step) {
    return matrix_descriptor(static_cast<const char*>(tile) + step * 32, kStride);
  }
  static constexpr int size(int rows) { return rows / 8 * kStride / 2; }  // numbers
};

/// How B lies in shared memory, n innermost: two steps of 16 rows of 64 columns, then the
/// same of the next columns.
struct TransposedLayout {
  static constexpr int kSteps = 2;
  static constexpr int kColumns = kDepth * kSteps;
  static constexpr int kBox = kColumns * kSwizzleSpan;  // bytes
  static constexpr int kEightRows = 8 * kSwizzleSpan;

  __device__ static int64_t place(int row, int column) {
    return row / 64 * kBox + swizzled(column * kSwizzleSpan + row % 64 * 2);
  }
  __device__ static uint64_t descriptor(const void* tile, int step) {
    return matrix_descriptor(static_cast<const char*>(tile) + step * 2 * kEightRows, kEightRows, kBox);
  }
  static constexpr int size(int rows) { return rows / 64 * kBox / 2; }  // numbers
};

template <class Layout, class T>
__device__ void write_tile(T* tile, const T* numbers, int rows, int step) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * Layout::kColumns; i += kThreads) {
    const int row = i / Layout::kColumns;
    const int column = i % Layout::kColumns;
    const bool mine = column / kDepth == step;
    const T number = mine ? numbers[row * kDepth + column % kDepth] : to_storage<T>(99.0F);
    tile[Layout::place(row, column) / 2] = number;
  }
}

template <Major major>
using LayoutOf = std::conditional_t<major == Major::k, TileLayout, TransposedLayout>;

template <class T>
__device__ void load_rows(uint32_t (&registers)[4], const T* a) {
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane() / 4;
  const int pair = lane() % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const T* const from = a + (row + 8 * (i % 2)) * kDepth + pair + 8 * (i / 2);
    registers[i] = uint32_t{from[0].bits} | uint32_t{from[1].bits} << 16;
  }
}

/// Where the thread's number i of the sums [64, kN] belongs.
__device__ int place_of_sum(int i) {
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane() / 4 + i / 2 % 2 * 8;
  return row * kN + i / 4 * 8 + lane() % 4 * 2 + i % 2;
}

/// One product for each block, in a step of its own: sums [64, kN] = A [64, 16] B + (add ? sums : 0),
/// b_all stored as [kN, 16].
template <class T, bool a_in_registers, Major b_major>
__global__ void __launch_bounds__(kThreads)
    product_kernel(const T* a_all, const T* b_all, bool add, float* sums_all) {
  using Layout = TileLayout;
  using BLayout = LayoutOf<b_major>;
  SharedMemory memory;
  T* const a_tile = memory.array<T>(Layout::size(kRows), 1024);
  T* const b_tile = memory.array<T>(BLayout::size(kN), 1024);
  const int block = static_cast<int>(blockIdx.x);
  const int a_step = block % Layout::kSteps;
  const int b_step = block % BLayout::kSteps;
  const T* const a = a_all + block * kRows * kDepth;
  float* const sums = sums_all + block * kRows * kN;
  write_tile<Layout>(a_tile, a, kRows, a_step);
  write_tile<BLayout>(b_tile, b_all + block * kN * kDepth, kN, b_step);
  fence_async_proxy();
  __syncthreads();
  float mine[kWarpgroupSums];
#pragma unroll
  for (int i = 0; i < kWarpgroupSums; ++i) mine[i] = sums[place_of_sum(i)];
  uint32_t rows[4];
  load_rows(rows, a);
  const uint64_t b = BLayout::descriptor(b_tile, b_step);
  warpgroup_fence(mine);
  if constexpr (a_in_registers) {
    warpgroup_mma<T, b_major>(mine, rows, b, add);
  } else {
    warpgroup_mma<T, b_major>(mine, Layout::descriptor(a_tile, a_step), b, add);
  }
  warpgroup_commit();
  warpgroup_wait<0>(mine);
#pragma unroll
  for (int i = 0; i < kWarpgroupSums; ++i) sums[place_of_sum(i)] = mine[i];
}

template <class T>
T stored(int number) {
  return T{std::is_same_v<T, Float16> ? to_float16(number) : to_bfloat16(number)};
}

// Products in which every row of A has one number that is not 0, in another column for each of 16 products,
// so that each sum is one number of B; B's numbers say their row in one series of products, and their column
// in another. A's numbers say which 16 rows they belong to. Whatever is misplaced gives a wrong sum.
struct Impulses {
  static constexpr int kProducts = 2 * kDepth;

  static int column_of_row(int product, int row) { return (product + row) % kDepth; }
  static int a(int product, int row, int k) {
    return k == column_of_row(product, row) ? 1 + row / kDepth : 0;
  }
  static int b(int product, int row, int k) { return product < kDepth ? row + 1 : k + 1; }
  static int c(int row, int column) { return 512 * (row * kN + column); }
};

template <class T, bool a_in_registers, Major b_major = Major::k>
void check_impulses() {
  std::vector<T> a;
  std::vector<T> b;
  std::vector<float> c;
  std::vector<float> expected[2];  // without and with the sums
  for (int product = 0; product < Impulses::kProducts; ++product) {
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kDepth; ++k) a.push_back(stored<T>(Impulses::a(product, row, k)));
      for (int column = 0; column < kN; ++column) {
        const int k = Impulses::column_of_row(product, row);
        const int sum = Impulses::a(product, row, k) * Impulses::b(product, column, k);
        c.push_back(static_cast<float>(Impulses::c(row, column)));
        expected[0].push_back(static_cast<float>(sum));
        expected[1].push_back(static_cast<float>(Impulses::c(row, column) + sum));
      }
    }
    for (int row = 0; row < kN; ++row) {
      for (int k = 0; k < kDepth; ++k) b.push_back(stored<T>(Impulses::b(product, row, k)));
    }
  }
  const Buffer<T> left = upload(a);
  const Buffer<T> right = upload(b);
  const int64_t bytes = (TileLayout::size(kRows) + LayoutOf<b_major>::size(kN)) * 2;
  for (const bool add : {false, true}) {
    Buffer<float> sums = upload(c);
    launch<product_kernel<T, a_in_registers, b_major>>(
        LaunchShape(extent(Impulses::kProducts), extent(kThreads), bytes, nullptr), left.data(), right.data(),
        add, sums.data());
    EXPECT_EQ(download(sums), expected[add]);
  }
}

TEST_F(WarpgroupMma, TakesRowsFromRegistersAndColumnsFromSharedMemory) {
  under_every_schedule([] {
    check_impulses<Bfloat16, true>();
    check_impulses<Float16, true>();
  });
}

TEST_F(WarpgroupMma, TakesBothOperandsFromSharedMemory) {
  under_every_schedule([] {
    check_impulses<Bfloat16, false>();
    check_impulses<Float16, false>();
  });
}

TEST_F(WarpgroupMma, TakesColumnsWhoseNumbersAreAdjacentAlongN) {
  under_every_schedule([] {
    check_impulses<Bfloat16, true, Major::n>();
    check_impulses<Float16, true, Major::n>();
    check_impulses<Bfloat16, false, Major::n>();
  });
}

// Boxes that load_box copies: scores [2, 64, 128] = queries [2, 64, 128] keys [128, 128], in two groups of
// four steps, of which the first is waited for while the second is in flight.

constexpr int kHeadDim = 128;
constexpr int kKeys = kN;
constexpr int kColumns = 64;  // of a box

struct Boxes {
  Bfloat16* queries;  // [2, kHeadDim / kColumns, kRows, kColumns]
  Bfloat16* keys;     // [kHeadDim / kColumns, kKeys, kColumns]
  uint64_t* loaded;

  __host__ __device__ explicit Boxes(SharedMemory& memory)
      : queries(memory.array<Bfloat16>(2 * kRows * kHeadDim, 1024)),
        keys(memory.array<Bfloat16>(kKeys * kHeadDim, 1024)),
        loaded(memory.array<uint64_t>(1)) {}
};

__device__ void load_boxes(const Boxes& shared, const TensorMap& queries, const TensorMap& keys) {
  mbarrier_init(shared.loaded, 1);
  mbarrier_fence_init();
  mbarrier_arrive_expect(shared.loaded, (2 * kRows + kKeys) * kHeadDim * 2);
  for (int part = 0; part < kHeadDim / kColumns; ++part) {
    load_box(shared.keys + part * kKeys * kColumns, keys, shared.loaded, part * kColumns, 0, 0);
    for (int head = 0; head < 2; ++head) {
      load_box(shared.queries + (2 * head + part) * kRows * kColumns, queries, shared.loaded, part * kColumns,
               0, head);
    }
  }
}

__device__ void issue_scores(float (&sums)[kWarpgroupSums], const Boxes& shared, int head) {
  constexpr int kStride = 1024;
  for (int k = 0; k < kHeadDim; k += kDepth) {
    const int part = k / kColumns;
    const Bfloat16* const a = shared.queries + (2 * head + part) * kRows * kColumns + k % kColumns;
    const Bfloat16* const b = shared.keys + part * kKeys * kColumns + k % kColumns;
    warpgroup_mma<Bfloat16>(sums, matrix_descriptor(a, kStride), matrix_descriptor(b, kStride), k > 0);
  }
  warpgroup_commit();
}

__global__ void __launch_bounds__(kThreads)
    scores_kernel(const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap keys,
                  float* scores) {
  SharedMemory memory;
  const Boxes shared(memory);
  if (threadIdx.x == 0) load_boxes(shared, queries, keys);
  __syncthreads();
  mbarrier_wait(shared.loaded, 0);
  float first[kWarpgroupSums];
  float second[kWarpgroupSums];
  warpgroup_fence(first, second);
  issue_scores(first, shared, 0);
  issue_scores(second, shared, 1);
  warpgroup_wait<1>(first);
#pragma unroll
  for (int i = 0; i < kWarpgroupSums; ++i) scores[place_of_sum(i)] = first[i];
  warpgroup_wait<0>(second);
#pragma unroll
  for (int i = 0; i < kWarpgroupSums; ++i) scores[kRows * kKeys + place_of_sum(i)] = second[i];
}

// Small integers: their sums are exact.
int of_query(int head, int row, int k) { return (head * 7 + row * 3 + k * 5) % 11 - 5; }
int of_key(int row, int k) { return (row * 5 + k * 2) % 7 - 3; }

TEST_F(WarpgroupMma, MultipliesBoxesOfTensorsInGroupsOfSteps) {
  std::vector<Bfloat16> queries;
  std::vector<Bfloat16> keys;
  std::vector<float> expected;
  for (int head = 0; head < 2; ++head) {
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kHeadDim; ++k) queries.push_back(stored<Bfloat16>(of_query(head, row, k)));
      for (int key = 0; key < kKeys; ++key) {
        int score = 0;
        for (int k = 0; k < kHeadDim; ++k) score += of_query(head, row, k) * of_key(key, k);
        expected.push_back(static_cast<float>(score));
      }
    }
  }
  for (int row = 0; row < kKeys; ++row) {
    for (int k = 0; k < kHeadDim; ++k) keys.push_back(stored<Bfloat16>(of_key(row, k)));
  }
  const Buffer<Bfloat16> left = upload(queries);
  const Buffer<Bfloat16> right = upload(keys);
  const TensorMap of_queries = tensor_map(
      left.data(), {{kHeadDim, kRows, 2}, {kHeadDim * 2, kHeadDim * 2 * kRows}, {kColumns, kRows, 1}});
  const TensorMap of_keys = tensor_map(
      right.data(), {{kHeadDim, kKeys, 1}, {kHeadDim * 2, kHeadDim * 2 * kKeys}, {kColumns, kKeys, 1}});
  under_every_schedule([&] {
    Buffer<float> scores(2 * kRows * kKeys);
    launch<scores_kernel>(LaunchShape(extent(1), extent(kThreads), shared_bytes<Boxes>(), nullptr),
                          of_queries, of_keys, scores.data());
    EXPECT_EQ(download(scores), expected);
  });
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
