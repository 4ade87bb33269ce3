// The semantics of a warp's tensor core instructions, lane by lane.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "block.hpp"

namespace kvbound::cuda::emulation {
inline namespace KVBOUND_CUDA_BUILD {

/// Loads four 8 x 8 matrices of 16-bit numbers, or their transposes, as ldmatrix.x4 does.
inline void load_matrices(uint32_t (&fragment)[4], const void* row, bool transposed, CallSite where) {
  const char* const name = transposed ? "ldmatrix.trans" : "ldmatrix";
  require_shared(row, 16, 16, name, where);
  struct Mine {
    uint32_t* fragment;
    const void* row;
  } mine{fragment, row};
  const auto load = [transposed](const auto& of) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t numbers[8][8];
      for (int r = 0; r < 8; ++r) std::memcpy(numbers[r], of(8 * matrix + r).row, sizeof numbers[r]);
      for (int l = 0; l < kWarpSize; ++l) {
        const int r = l / 4;
        const int pair = 2 * (l % 4);
        const uint16_t low = transposed ? numbers[pair][r] : numbers[r][pair];
        const uint16_t high = transposed ? numbers[pair + 1][r] : numbers[r][pair + 1];
        of(l).fragment[matrix] = uint32_t{low} | uint32_t{high} << 16;
      }
    }
  };
  together(name, ~0U, mine, where, load, [](Observer& watching, const auto& of) {
    std::array<uintptr_t, kWarpSize> rows;
    for (int l = 0; l < kWarpSize; ++l) rows[l] = reinterpret_cast<uintptr_t>(of(l).row);
    watching.matrix_load(rows);
  });
}

/// The products that a tensor core aligns and adds at a time, together with the running sum.
inline constexpr int kAligned = 8;

/// total + the sum of products, with the largest error that is to be expected: PTX promises no more than single
/// precision, and tensor cores align addends to the largest and truncate. Here every addend is truncated to a multiple
/// of the last of the largest's 24 bits, and so is the sum.
inline float add_aligned(const float (&products)[kAligned], float total) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kOne = 1 << 23, kInfinity = 255 * kOne;
  uint32_t largest = std::bit_cast<uint32_t>(total) & kMagnitude;
  for (const float product : products)
    largest = std::max(largest, std::bit_cast<uint32_t>(product) & kMagnitude);
  if (largest >= kInfinity) {
    for (const float product : products) total += product;
    return total;
  }
  const uint32_t exponent = std::max(largest & kInfinity, 24 * kOne);  // its last bit is then 2^-126
  const float last_place = std::bit_cast<float>(exponent - 23 * kOne);
  const float inverse = std::bit_cast<float>(277 * kOne - exponent);
  auto sum = static_cast<int32_t>(total * inverse);
  for (const float product : products) sum += static_cast<int32_t>(product * inverse);
  const auto magnitude = static_cast<uint32_t>(std::abs(sum));
  const auto kept = static_cast<float>(magnitude & ~0U << std::max(0, 8 - std::countl_zero(magnitude)));
  return (sum < 0 ? -kept : kept) * last_place;
}

/// c += a b as mma.m16n8k16 does, the products exact. `widen` makes a float of 16 bits.
template <class Widen>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const Widen& widen,
                  CallSite where) {
  struct Mine {
    float* c;
    const uint32_t* a;
    const uint32_t* b;
  } mine{c, a, b};
  const auto multiply = [&widen](const auto& of) {
    const auto low = [&](uint32_t word) { return widen(static_cast<uint16_t>(word & 0xffff)); };
    const auto high = [&](uint32_t word) { return widen(static_cast<uint16_t>(word >> 16)); };
    float left[16][16];
    float right[16][8];
    float sum[16][8];
    for (int l = 0; l < kWarpSize; ++l) {
      const Mine& lane = of(l);
      const int row = l / 4;
      const int pair = 2 * (l % 4);
      for (int i = 0; i < 4; ++i) {
        float* const to = &left[row + 8 * (i % 2)][pair + 8 * (i / 2)];
        to[0] = low(lane.a[i]);
        to[1] = high(lane.a[i]);
      }
      for (int i = 0; i < 2; ++i) {
        right[pair + 8 * i][row] = low(lane.b[i]);
        right[pair + 8 * i + 1][row] = high(lane.b[i]);
        sum[row + 8 * i][pair] = lane.c[2 * i];
        sum[row + 8 * i][pair + 1] = lane.c[2 * i + 1];
      }
    }
    for (int r = 0; r < 16; ++r) {
      for (int column = 0; column < 8; ++column) {
        for (int first = 0; first < 16; first += kAligned) {
          float products[kAligned];
          for (int k = 0; k < kAligned; ++k) products[k] = left[r][first + k] * right[first + k][column];
          sum[r][column] = add_aligned(products, sum[r][column]);
        }
      }
    }
    for (int l = 0; l < kWarpSize; ++l) {
      const int row = l / 4;
      const int pair = 2 * (l % 4);
      for (int i = 0; i < 4; ++i) of(l).c[i] = sum[row + 8 * (i / 2)][pair + i % 2];
    }
  };
  together("mma", ~0U, mine, where, multiply,
           [](Observer& watching, const auto&) { watching.warp(Instruction::mma, 2.0 * 16 * 8 * 16); });
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda::emulation
