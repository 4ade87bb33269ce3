// How tensor cores interpret their operand fragments, and how ldmatrix fills them.
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class Fragments : public DeviceTest {};

constexpr int kLanes = 32;

LaunchShape one_warp(int64_t shared = 0, CallSite where = CallSite::current()) {
  return LaunchShape(extent(1), extent(kLanes), shared, nullptr, where);
}

__global__ void ldmatrix_kernel(const uint16_t* numbers, uint32_t* fragments, uint32_t* transposed) {
  SharedMemory memory;
  uint16_t* const shared = memory.array<uint16_t>(kLanes * 8);
  for (int i = 0; i < 8; ++i) shared[threadIdx.x * 8 + i] = numbers[threadIdx.x * 8 + i];
  __syncwarp();
  uint32_t fragment[4];
  ldmatrix_x4(fragment, shared + threadIdx.x * 8);
  for (int i = 0; i < 4; ++i) fragments[threadIdx.x * 4 + i] = fragment[i];
  ldmatrix_x4_trans(fragment, shared + threadIdx.x * 8);
  for (int i = 0; i < 4; ++i) transposed[threadIdx.x * 4 + i] = fragment[i];
}

TEST_F(Fragments, LdmatrixGivesEveryLaneItsPairs) {
  std::vector<uint16_t> numbers(kLanes * 8);
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<uint16_t>(i);  // 64 matrix + 8 row + column
  const Buffer<uint16_t> input = upload(numbers);
  under_every_schedule([&] {
    Buffer<uint32_t> fragments(kLanes * 4);
    Buffer<uint32_t> transposed(kLanes * 4);
    launch<ldmatrix_kernel>(one_warp(kLanes * 16), input.data(), fragments.data(), transposed.data());
    const std::vector<uint32_t> found = download(fragments);
    const std::vector<uint32_t> found_transposed = download(transposed);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      for (uint32_t matrix = 0; matrix < 4; ++matrix) {
        const uint32_t row = lane / 4;
        const uint32_t pair = lane % 4 * 2;
        const auto at = [matrix](uint32_t r, uint32_t c) { return matrix * 64 + r * 8 + c; };
        EXPECT_EQ(found[lane * 4 + matrix], at(row, pair) | at(row, pair + 1) << 16);
        EXPECT_EQ(found_transposed[lane * 4 + matrix], at(pair, row) | at(pair + 1, row) << 16);
      }
    }
  });
}

// C += A B for row-major A [16, 16], B [16, 8] and C [16, 8]; one product per block, each operand loaded from
// where its fragment expects it.
//
// in_halves  by two products of half the depth
template <Storage16 T, bool in_halves = false>
__global__ void mma_kernel(const T* a_all, const T* b_all, float* c_all) {
  const T* const a = a_all + blockIdx.x * 256;
  const T* const b = b_all + blockIdx.x * 128;
  float* const c = c_all + blockIdx.x * 128;
  const unsigned row = threadIdx.x / 4;
  const unsigned pair = threadIdx.x % 4 * 2;
  const auto packed = [](T low, T high) { return uint32_t{low.bits} | uint32_t{high.bits} << 16; };
  const auto of_a = [&](unsigned r, unsigned k) { return packed(a[r * 16 + k], a[r * 16 + k + 1]); };
  const auto of_b = [&](unsigned k, unsigned n) { return packed(b[k * 8 + n], b[(k + 1) * 8 + n]); };
  const uint32_t left[4] = {of_a(row, pair), of_a(row + 8, pair), of_a(row, pair + 8),
                            of_a(row + 8, pair + 8)};
  const uint32_t right[2] = {of_b(pair, row), of_b(pair + 8, row)};
  float sums[4];
  for (unsigned i = 0; i < 4; ++i) sums[i] = c[(row + 8 * (i / 2)) * 8 + pair + i % 2];
  if constexpr (in_halves) {
    mma_m16n8k8<T>(sums, left[0], left[1], right[0]);
    mma_m16n8k8<T>(sums, left[2], left[3], right[1]);
  } else {
    mma_m16n8k16<T>(sums, left, right);
  }
  for (unsigned i = 0; i < 4; ++i) c[(row + 8 * (i / 2)) * 8 + pair + i % 2] = sums[i];
}

// The same product with operands from shared memory, as kernels load them: A by ldmatrix, B, stored as
// [k][n], by ldmatrix with transposition.
template <Storage16 T>
__global__ void mma_from_shared_kernel(const T* a_all, const T* b_all, float* c_all) {
  SharedMemory memory;
  T* const a = memory.array<T>(256);
  T* const b = memory.array<T>(128);
  for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) a[i] = a_all[blockIdx.x * 256 + i];
  for (unsigned i = threadIdx.x; i < 128; i += blockDim.x) b[i] = b_all[blockIdx.x * 128 + i];
  float* const c = c_all + blockIdx.x * 128;
  __syncwarp();
  const unsigned row = threadIdx.x / 4;
  const unsigned pair = threadIdx.x % 4 * 2;
  uint32_t left[4];
  uint32_t both[4];  // ldmatrix loads four 8 x 8 matrices: both of B twice
  ldmatrix_x4(left, a + (threadIdx.x % 16) * 16 + threadIdx.x / 16 * 8);
  ldmatrix_x4_trans(both, b + (threadIdx.x % 16) * 8);
  const uint32_t right[2] = {both[0], both[1]};
  float sums[4];
  for (unsigned i = 0; i < 4; ++i) sums[i] = c[(row + 8 * (i / 2)) * 8 + pair + i % 2];
  mma_m16n8k16<T>(sums, left, right);
  for (unsigned i = 0; i < 4; ++i) c[(row + 8 * (i / 2)) * 8 + pair + i % 2] = sums[i];
}

template <Storage16 T>
T stored(double number) {
  return T{std::is_same_v<T, Float16> ? to_float16(number) : to_bfloat16(number)};
}

// One product for each element of A, with that element 1, the others 0, and 128 different numbers in B; then
// one for each element of B likewise. Every misplaced element of a fragment gives a wrong number.
template <Storage16 T, auto kernel>
void check_impulses() {
  constexpr size_t kInA = 256;
  constexpr size_t kInB = 128;
  constexpr size_t kProducts = kInA + kInB;
  std::vector<T> a(kProducts * 256);
  std::vector<T> b(kProducts * 128);
  std::vector<float> c(kProducts * 128);
  for (size_t product = 0; product < kProducts; ++product) {
    const bool impulse_in_a = product < kInA;
    for (size_t i = 0; i < 256; ++i) {
      a[product * 256 + i] =
          stored<T>(impulse_in_a ? static_cast<double>(i == product) : static_cast<double>(i) - 128);
    }
    for (size_t i = 0; i < 128; ++i) {
      b[product * 128 + i] =
          stored<T>(impulse_in_a ? static_cast<double>(i) + 1 : static_cast<double>(i == product - kInA));
      c[product * 128 + i] = static_cast<float>(1000 * i);
    }
  }
  std::vector<float> expected = c;
  for (size_t product = 0; product < kProducts; ++product) {
    for (size_t i = 0; i < 128; ++i) {
      const size_t row = i / 8;
      const size_t col = i % 8;
      const size_t place = product - kInA;  // position of the impulse in B
      if (product < kInA && product / 16 == row)
        expected[product * 128 + i] += static_cast<float>(product % 16 * 8 + col + 1);
      if (product >= kInA && place % 8 == col) {
        expected[product * 128 + i] += static_cast<float>(row * 16 + place / 8) - 128;
      }
    }
  }
  const Buffer<T> left = upload(a);
  const Buffer<T> right = upload(b);
  Buffer<float> sums = upload(c);
  launch<kernel>(LaunchShape(extent(kProducts), extent(kLanes), 768, nullptr), left.data(), right.data(),
                 sums.data());
  EXPECT_EQ(download(sums), expected);
}

TEST_F(Fragments, MmaMultipliesWhatItsFragmentsHold) {
  under_every_schedule([] {
    check_impulses<Bfloat16, mma_kernel<Bfloat16>>();
    check_impulses<Float16, mma_kernel<Float16>>();
  });
}

TEST_F(Fragments, MmaOfHalfTheDepthMultipliesHalvesOfThem) {
  under_every_schedule([] {
    check_impulses<Bfloat16, mma_kernel<Bfloat16, true>>();
    check_impulses<Float16, mma_kernel<Float16, true>>();
  });
}

// pairs[2 i], pairs[2 i + 1]: two numbers as a pair, and each by itself.
template <Storage16 T>
__global__ void pairs_kernel(const float* numbers, uint32_t* pairs) {
  const float low = numbers[2 * threadIdx.x], high = numbers[2 * threadIdx.x + 1];
  pairs[2 * threadIdx.x] = to_storage_pair<T>(low, high);
  pairs[2 * threadIdx.x + 1] = uint32_t{to_storage<T>(low).bits} | uint32_t{to_storage<T>(high).bits} << 16;
}

// Among the numbers are ties, subnormal ones of either type, and some that are too large for FP16.
TEST_F(Fragments, PairsAreStoredAsTheirNumbers) {
  std::vector<float> numbers;
  for (int i = 0; i < 2 * kLanes; ++i) {
    numbers.push_back((i % 3 == 0 ? -1.0F : 1.0F) *
                      std::ldexp(1 + static_cast<float>(i) * 0x1p-11F, 20 - i * 2));
  }
  const Buffer<float> input = upload(numbers);
  const auto check = [&]<Storage16 T>(T) {
    Buffer<uint32_t> pairs(2 * kLanes);
    launch<pairs_kernel<T>>(one_warp(), input.data(), pairs.data());
    const std::vector<uint32_t> found = download(pairs);
    for (size_t i = 0; i < found.size(); i += 2) EXPECT_EQ(found[i], found[i + 1]) << numbers[i];
  };
  check(Bfloat16{});
  check(Float16{});
}

TEST_F(Fragments, LdmatrixGivesMmaItsFragments) {
  under_every_schedule([] {
    check_impulses<Bfloat16, mma_from_shared_kernel<Bfloat16>>();
    check_impulses<Float16, mma_from_shared_kernel<Float16>>();
  });
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
