// The semantics of a warp's tensor core instructions, lane by lane.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
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
/// Sums that are formed side by side, by the processor's vector instructions.
inline constexpr int kColumns = 8;
using Columns = float[kColumns];

inline void add_aligned(const Columns (&products)[kAligned], Columns& totals);

/// The same where some columns have addends that are infinite or NaN: their sums are, too.
inline void add_infinite(const Columns (&products)[kAligned], Columns& totals) {
  Columns finite[kAligned], sums, plain;
  for (int c = 0; c < kColumns; ++c) {
    plain[c] = totals[c];
    bool all_finite = std::isfinite(totals[c]);
    for (const Columns& row : products) {
      plain[c] += row[c];
      all_finite = all_finite && std::isfinite(row[c]);
    }
    sums[c] = all_finite ? totals[c] : 0;
    for (int k = 0; k < kAligned; ++k) finite[k][c] = all_finite ? products[k][c] : 0;
    if (all_finite) plain[c] = 0;
  }
  add_aligned(finite, sums);
  for (int c = 0; c < kColumns; ++c) totals[c] = sums[c] + plain[c];
}

/// totals[c] += products[0][c] + products[1][c] + ..., with the largest error that is to be expected: PTX
/// promises no more than single precision, and tensor cores align addends to the largest and truncate. Here
/// every addend is truncated to a multiple of the last of the largest's 24 bits, and so is the sum.
inline void add_aligned(const Columns (&products)[kAligned], Columns& totals) {
  constexpr int32_t kMagnitude = 0x7fffffff, kOne = 1 << 23, kInfinity = 255 * kOne, kLeast = 24 * kOne;
  const auto bits = [](float number) { return std::bit_cast<int32_t>(number); };
  const auto number = [](int32_t pattern) { return std::bit_cast<float>(pattern); };
  int32_t largest[kColumns], sums[kColumns], infinite = 0;
  for (int c = 0; c < kColumns; ++c) largest[c] = bits(totals[c]) & kMagnitude;
  for (const Columns& row : products) {
    for (int c = 0; c < kColumns; ++c) largest[c] = std::max(largest[c], bits(row[c]) & kMagnitude);
  }
  for (int c = 0; c < kColumns; ++c) infinite |= static_cast<int32_t>(largest[c] >= kInfinity);
  if (infinite != 0) return add_infinite(products, totals);
  Columns inverse, last_place;
  for (int c = 0; c < kColumns; ++c) {
    const int32_t exponent = std::max(largest[c] & kInfinity, kLeast);  // its last bit is then 2^-126
    last_place[c] = number(exponent - 23 * kOne);
    inverse[c] = number(253 * kOne - (exponent - kLeast));
    sums[c] = static_cast<int32_t>(totals[c] * inverse[c]);
  }
  for (const Columns& row : products) {
    for (int c = 0; c < kColumns; ++c) sums[c] += static_cast<int32_t>(row[c] * inverse[c]);
  }
  for (int c = 0; c < kColumns; ++c) {
    const int32_t magnitude = std::abs(sums[c]);
    const auto rounded = static_cast<float>(magnitude);
    // The largest number of 24 bits that is not above it.
    const float kept =
        number(bits(rounded) - static_cast<int32_t>(static_cast<int32_t>(rounded) > magnitude));
    totals[c] = (sums[c] < 0 ? -kept : kept) * last_place[c];
  }
}

/// totals[c] += left[0] right[0][c] + left[1] right[1][c] + ..., kAligned products.
inline void add_products(const float* left, const Columns* right, Columns& totals) {
  Columns products[kAligned];
  for (int k = 0; k < kAligned; ++k) {
    for (int c = 0; c < kColumns; ++c) products[k][c] = left[k] * right[k][c];
  }
  add_aligned(products, totals);
}

/// c += a b as mma.m16n8k8 (kHalves = 1) and mma.m16n8k16 (2) do, the products exact. `widen`
/// makes a float of 16 bits.
template <int kHalves, class Widen>
void multiply_add(float (&c)[4], const uint32_t (&a)[2 * kHalves], const uint32_t (&b)[kHalves],
                  const Widen& widen, CallSite where) {
  constexpr int kDepth = kHalves * kAligned;
  struct Mine {
    float* c;
    const uint32_t* a;
    const uint32_t* b;
  } mine{c, a, b};
  const auto multiply = [&](const auto& of) {
    const auto low = [&](uint32_t word) { return widen(static_cast<uint16_t>(word & 0xffff)); };
    const auto high = [&](uint32_t word) { return widen(static_cast<uint16_t>(word >> 16)); };
    float left[16][kDepth];
    Columns right[kDepth];
    Columns sum[16];
    for (int l = 0; l < kWarpSize; ++l) {
      const Mine& lane = of(l);
      const int row = l / 4;
      const int pair = 2 * (l % 4);
      for (int i = 0; i < 2 * kHalves; ++i) {
        float* const to = &left[row + 8 * (i % 2)][pair + 8 * (i / 2)];
        to[0] = low(lane.a[i]);
        to[1] = high(lane.a[i]);
      }
      for (int i = 0; i < kHalves; ++i) {
        right[pair + 8 * i][row] = low(lane.b[i]);
        right[pair + 8 * i + 1][row] = high(lane.b[i]);
      }
      for (int i = 0; i < 2; ++i) {
        sum[row + 8 * i][pair] = lane.c[2 * i];
        sum[row + 8 * i][pair + 1] = lane.c[2 * i + 1];
      }
    }
    for (int r = 0; r < 16; ++r) {
      for (int first = 0; first < kDepth; first += kAligned) {
        add_products(&left[r][first], &right[first], sum[r]);
      }
    }
    for (int l = 0; l < kWarpSize; ++l) {
      const int row = l / 4;
      const int pair = 2 * (l % 4);
      for (int i = 0; i < 4; ++i) of(l).c[i] = sum[row + 8 * (i / 2)][pair + i % 2];
    }
  };
  together("mma", ~0U, mine, where, multiply,
           [](Observer& watching, const auto&) { watching.warp(Instruction::mma, 2.0 * 16 * 8 * kDepth); });
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda::emulation
