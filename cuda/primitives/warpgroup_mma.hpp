// Products of matrices by a warpgroup's tensor cores (wgmma, sm_90a): sums [64, 128] += A [64, 16] B
// [16, 128], numbers of BF16 or FP16, sums in fp32. A warpgroup is four warps of which the first has a number
// that is a multiple of four; all of its threads take part.
//
// The numbers of thread t of the warpgroup, with lane l = t % 32, row = 16 (t / 32) + l / 4 and pair = 2 (l %
// 4), low half of a register first:
//
//     A     64 x 16   register 0: A[row, pair..pair+1]      1: A[row + 8, pair..]
//                              2: A[row, pair + 8..]        3: A[row + 8, pair + 8..]
//     sums  64 x 128  numbers 4 j, 4 j + 1: sums[row, 8 j + pair..8 j + pair + 1]
//                     4 j + 2, 4 j + 3: sums[row + 8, 8 j + pair..]
//
// In shared memory A is stored as [64, k] and B as [128, k], k innermost: as boxes of 64 columns
// that load_box copies lie. A product takes 16 of the columns; a descriptor that begins 32 bytes
// further on names the next 16.
//
// With Major::n B is stored as [k, 128], those 128 innermost. A box of 64 columns holds 64 of them; the other
// 64 lie `leading` bytes further on. A product takes 16 rows of each box; the next 16 begin two groups of
// eight rows, 2 stride bytes, further on.
//
// Products are asynchronous. In this order:
//
//     warpgroup_fence(sums)     behind all accesses to registers of sums and A, before the first product
//     warpgroup_mma ...         any number of them; consecutive ones may add to the same sums
//     warpgroup_commit()        closes a group
//     warpgroup_wait<n>(sums)   all groups but the latest n are complete: registers and
//                               shared memory are free again
//
// What threads have written to shared memory needs fence_async_proxy and a barrier before a product reads it.
//
// The emulation keeps sums in flight at NaN and notices if they are written, reads shared memory at the wait
// or, with eager copies, at the issue, and requires a fence before the first product and behind every wait
// that completes sums. It cannot notice registers of A that are loaded between the fence and the first
// product that reads them.
//
// source  PTX ISA, 9.7.15 (asynchronous warpgroup level matrix instructions)
#pragma once

#include <kvbound/cuda/support/swizzle.hpp>

#include "hopper.hpp"
#include "tensor_core.hpp"

#ifdef KVBOUND_CUDA_NATIVE
#include "warpgroup_mma_instructions.hpp"
#else
#include <kvbound/cuda/emulation/warpgroup_mma.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A thread's part of the sums [64, 128].
inline constexpr int kWarpgroupSums = 64;

/// Along which dimension the numbers of B are adjacent in shared memory.
enum class Major : uint8_t { k, n };

/// The descriptor of a matrix [rows, 16] of 16-bit numbers in shared memory; with Major::n of its
/// transpose [16, columns].
///
/// shared   the first number: a tile begins on a multiple of kSwizzlePeriod, and k advances it
///          by 32 bytes for 16 numbers
/// stride   bytes from a group of eight rows to the next; within a group rows lie kSwizzleSpan bytes apart
/// leading  with Major::n, bytes from the first 64 columns to the next; else without meaning
#ifdef KVBOUND_CUDA_NATIVE
__device__ __forceinline__ uint64_t matrix_descriptor(const void* shared, int stride, int leading = 16) {
  const uint32_t address = shared_address(shared);
#else
inline uint64_t matrix_descriptor(const void* shared, int stride, int leading = 16,
                                  CallSite where = CallSite::current()) {
  const uint32_t address = shared_address(shared, where);
#endif
  constexpr uint64_t kSwizzle128Bytes = uint64_t{1} << 62;
  const auto field = [](uint32_t bytes) { return uint64_t{(bytes & 0x3ffff) >> 4}; };
  return field(address) | field(static_cast<uint32_t>(leading)) << 16 |
         field(static_cast<uint32_t>(stride)) << 32 | kSwizzle128Bytes;
}

#ifdef KVBOUND_CUDA_NATIVE

namespace detail {

/// Keeps the compiler from moving accesses to the numbers across this place.
template <int count>
__device__ __forceinline__ void pin(float (&numbers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(numbers[i])::"memory");
}

}  // namespace detail

/// Of one array of sums, or of two.
template <int count>
__device__ __forceinline__ void warpgroup_fence(float (&sums)[count]) {
  if constexpr (kHasWgmma) {
    detail::pin(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  } else {
    __trap();
  }
}
template <int count, int count2>
__device__ __forceinline__ void warpgroup_fence(float (&sums)[count], float (&sums2)[count2]) {
  detail::pin(sums2);
  warpgroup_fence(sums);
}

/// Closes the group of all products since the last call; it may be empty.
__device__ __forceinline__ void warpgroup_commit() {
  if constexpr (kHasWgmma) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  } else {
    __trap();
  }
}

/// Waits for all groups but the latest `in_flight`, in which no product may add to these sums:
/// of one array, or of two.
template <int in_flight, int count>
__device__ __forceinline__ void warpgroup_wait(float (&sums)[count]) {
  if constexpr (kHasWgmma) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(in_flight) : "memory");
    detail::pin(sums);
  } else {
    __trap();
  }
}
template <int in_flight, int count, int count2>
__device__ __forceinline__ void warpgroup_wait(float (&sums)[count], float (&sums2)[count2]) {
  warpgroup_wait<in_flight>(sums);
  detail::pin(sums2);
}

/// sums = A B + (add ? sums : 0), of A in registers, or of A's descriptor, and of B's descriptor.
template <Storage16 T, Major b_major = Major::k, class A>
__device__ __forceinline__ void warpgroup_mma(float (&sums)[kWarpgroupSums], const A& a, uint64_t b,
                                              bool add = true) {
  if constexpr (kHasWgmma) {
    detail::mma_m64n128k16<T, b_major == Major::n>(sums, a, b, add);
  } else {
    __trap();
  }
}

#else

template <int count>
void warpgroup_fence(float (&)[count], CallSite where = CallSite::current()) {
  emulation::fence_products(where);
}
template <int count, int count2>
void warpgroup_fence(float (&)[count], float (&)[count2], CallSite where = CallSite::current()) {
  emulation::fence_products(where);
}

inline void warpgroup_commit(CallSite where = CallSite::current()) { emulation::commit_products(where); }

template <int in_flight, int count>
void warpgroup_wait(float (&sums)[count], CallSite where = CallSite::current()) {
  emulation::wait_for_products(in_flight, where);
  emulation::require_complete(sums, where);
}
template <int in_flight, int count, int count2>
void warpgroup_wait(float (&sums)[count], float (&sums2)[count2], CallSite where = CallSite::current()) {
  warpgroup_wait<in_flight>(sums, where);
  emulation::require_complete(sums2, where);
}

template <Storage16 T, Major b_major = Major::k>
void warpgroup_mma(float (&sums)[kWarpgroupSums], const uint32_t (&a)[4], uint64_t b, bool add = true,
                   CallSite where = CallSite::current()) {
  const auto widen = [](uint16_t bits) { return to_float(T{bits}); };
  emulation::issue_product({sums, a, 0, b, b_major == Major::n, add, widen}, where);
}

template <Storage16 T, Major b_major = Major::k>
void warpgroup_mma(float (&sums)[kWarpgroupSums], uint64_t a, uint64_t b, bool add = true,
                   CallSite where = CallSite::current()) {
  const auto widen = [](uint16_t bits) { return to_float(T{bits}); };
  emulation::issue_product({sums, nullptr, a, b, b_major == Major::n, add, widen}, where);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
