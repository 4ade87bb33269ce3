// Products of small matrices by a warp's tensor cores (mma.sync, sm_80), and the loads of
// their operands (ldmatrix).
//
// The numbers that lane l has of a fragment, with row = l / 4 and pair = 2 (l % 4), low
// half of a register first:
//
//     A  16 x 16  register 0: A[row, pair..pair+1]       1: A[row + 8, pair..]
//                          2: A[row, pair + 8..]         3: A[row + 8, pair + 8..]
//     B  16 x 8   register 0: B[pair..pair+1, row]       1: B[pair + 8.., row]
//     C  16 x 8   numbers 0, 1: C[row, pair..pair+1]     2, 3: C[row + 8, pair..]
//
// Those of half the depth are halves of these: A 16 x 8 registers 0 and 1 or 2 and 3,
// B 8 x 8 register 0 or 1.
#pragma once

#include <type_traits>

#include "kernel.hpp"

#ifndef KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/emulation/tensor_core.hpp>
#endif

namespace kvbound::cuda {

template <class T>
concept Storage16 = std::is_same_v<T, Bfloat16> || std::is_same_v<T, Float16>;

inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Loads four 8 x 8 matrices of 16-bit numbers. Lane l gives the address, in shared memory and
/// 16-byte aligned, of row l % 8 of matrix l / 8; register i gets matrix i's numbers
/// [row, pair..pair+1]. The whole warp takes part.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&fragment)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// The same of the matrices' transposes: register i gets matrix i's numbers [pair, row] and [pair + 1, row].
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&fragment)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// c += a b for fragments of T, sums in fp32. The whole warp takes part.
template <Storage16 T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// The same of half the depth: two products of eight have smaller errors than one of 16,
/// because tensor cores truncate.
template <Storage16 T>
__device__ __forceinline__ void mma_m16n8k8(float (&c)[4], uint32_t a_low, uint32_t a_high, uint32_t b) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a_low), "r"(a_high), "r"(b));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a_low), "r"(a_high), "r"(b));
  }
}

/// Two numbers as they are stored, the first in the low half: to_storage of each.
template <Storage16 T>
__device__ __forceinline__ uint32_t to_storage_pair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, Bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

#else

template <Storage16 T>
uint32_t to_storage_pair(float low, float high) {
  return uint32_t{to_storage<T>(low).bits} | uint32_t{to_storage<T>(high).bits} << 16;
}

inline void ldmatrix_x4(uint32_t (&fragment)[4], const void* row, CallSite where = CallSite::current()) {
  emulation::load_matrices(fragment, row, false, where);
}

inline void ldmatrix_x4_trans(uint32_t (&fragment)[4], const void* row,
                              CallSite where = CallSite::current()) {
  emulation::load_matrices(fragment, row, true, where);
}

template <Storage16 T>
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  CallSite where = CallSite::current()) {
  emulation::multiply_add<2>(
      c, a, b, [](uint16_t bits) { return to_float(T{bits}); }, where);
}

template <Storage16 T>
void mma_m16n8k8(float (&c)[4], uint32_t a_low, uint32_t a_high, uint32_t b,
                 CallSite where = CallSite::current()) {
  const uint32_t a[2] = {a_low, a_high};
  emulation::multiply_add<1>(
      c, a, {b}, [](uint16_t bits) { return to_float(T{bits}); }, where);
}

#endif

/// The error of a tensor core's sum of 16 products that begins with a running sum: 18 truncations to 24 bits
/// (reference/bounds/error_bounds.md, "The model").
inline constexpr double kChainedTensorSums = 18 * 0x1p-23;
/// The error of a sum of 8 products, which are aligned at once, and of one that begins with a running sum.
inline constexpr double kShortTensorSums = 8 * 0x1p-23;
inline constexpr double kShortChainedTensorSums = 9 * 0x1p-23;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
