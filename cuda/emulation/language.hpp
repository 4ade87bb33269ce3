// The parts of CUDA C++ that the kernels here use and C++ lacks, under the same names. Kernels include it
// through kernel.hpp. Where CUDA leaves a kernel's behaviour undefined, the kernel ends with a fault.
//
// Stricter than CUDA: every thread of a block has to reach a barrier, and at the same line; all lanes named
// in a mask have to take part; a lane that another one reads has to be in the mask.
#pragma once

#include <math.h>  // expf and the like without std::, as in CUDA
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

#include <kvbound/cuda/support/build.hpp>

#include "block.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): CUDA's names
namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

using emulation::blockDim;
using emulation::blockIdx;
using emulation::dim3;
using emulation::gridDim;
using emulation::threadIdx;

inline constexpr int warpSize = emulation::kWarpSize;

// Kernels access memory of any type through these vectors.
struct [[gnu::may_alias]] alignas(8) float2 {
  float x, y;
};
struct [[gnu::may_alias]] alignas(16) float4 {
  float x, y, z, w;
};
struct [[gnu::may_alias]] alignas(16) double2 {
  double x, y;
};
struct [[gnu::may_alias]] alignas(16) int4 {
  int x, y, z, w;
};
struct [[gnu::may_alias]] alignas(8) uint2 {
  unsigned x, y;
};
struct [[gnu::may_alias]] alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class T>
concept Number = std::is_arithmetic_v<T>;
template <class T>
concept Word = std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;

// As CUDA's: of a number and NaN, the number.
template <Number T>
constexpr T min(T a, std::type_identity_t<T> b) {
  return a < b || b != b ? a : b;
}
template <Number T>
constexpr T max(T a, std::type_identity_t<T> b) {
  return a > b || b != b ? a : b;
}

inline unsigned __float_as_uint(float number) { return std::bit_cast<unsigned>(number); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

// Barriers.

inline void __syncthreads(CallSite where = CallSite::current()) { emulation::wait_for_block(false, where); }
inline int __syncthreads_count(int flag, CallSite where = CallSite::current()) {
  return emulation::wait_for_block(flag != 0, where);
}
inline int __syncthreads_or(int flag, CallSite where = CallSite::current()) {
  return emulation::wait_for_block(flag != 0, where) > 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = ~0U, CallSite where = CallSite::current()) {
  char nothing = 0;
  emulation::together(emulation::Instruction::warp_barrier, "__syncwarp", mask, nothing, where,
                      [](const auto&) {});
}
inline void __threadfence() {
}  // memory accesses of the emulation are sequentially consistent at every switch of threads

}  // namespace KVBOUND_CUDA_BUILD

namespace emulation {
inline namespace KVBOUND_CUDA_BUILD {

template <class T>
struct Exchanged {
  T value;
  int source;  // lane
};

/// Every lane in the mask gets the value of its source lane.
template <class T>
T shuffle(const char* name, unsigned mask, T value, int source, CallSite where) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "CUDA shuffles 32 or 64 bits");
  Exchanged<T> mine{value, source};
  T result = value;
  struct Both {
    Exchanged<T>* mine;
    T* result;
  } both{&mine, &result};
  together(Instruction::shuffle, name, mask, both, where, [&](const auto& of) {
    for (unsigned left = mask; left != 0; left &= left - 1) {
      const int reader = std::countr_zero(left);
      const int from = of(reader).mine->source;
      if ((mask >> from & 1) == 0) fail_outside_mask(name, reader, from, where);
      *of(reader).result = of(from).mine->value;
    }
  });
  return result;
}

/// Every lane in the mask gets the sum of all their numbers.
template <class T>
T reduce_add(const char* name, unsigned mask, T value, CallSite where) {
  struct Addend {
    T value, sum;
  } addend{value, 0};
  together(Instruction::shuffle, name, mask, addend, where, [mask](const auto& of) {
    unsigned sum = 0;
    for (unsigned left = mask; left != 0; left &= left - 1)
      sum += static_cast<unsigned>(of(std::countr_zero(left)).value);
    for (unsigned left = mask; left != 0; left &= left - 1)
      of(std::countr_zero(left)).sum = static_cast<T>(sum);
  });
  return addend.sum;
}

inline unsigned ballot(const char* name, unsigned mask, bool flag, CallSite where) {
  struct Vote {
    bool flag;
    unsigned all;
  } vote{flag, 0};
  together(Instruction::shuffle, name, mask, vote, where, [mask](const auto& of) {
    unsigned all = 0;
    for (unsigned left = mask; left != 0; left &= left - 1) {
      const int voter = std::countr_zero(left);
      all |= (of(voter).flag ? 1U : 0U) << voter;
    }
    for (unsigned left = mask; left != 0; left &= left - 1) of(std::countr_zero(left)).all = all;
  });
  return vote.all;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace emulation

inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_COUNTED
// <math.h>'s, and counted.
inline float special(float result) {
  emulation::observe_lane(emulation::Instruction::special_function);
  return result;
}
inline double special(double result) {
  emulation::observe_lane(emulation::Instruction::special_function);
  return result;
}
inline float expf(float x) { return special(::expf(x)); }
inline float exp2f(float x) { return special(::exp2f(x)); }
inline float expm1f(float x) { return special(::expm1f(x)); }
inline float logf(float x) { return special(::logf(x)); }
inline float log1pf(float x) { return special(::log1pf(x)); }
inline float sqrtf(float x) { return special(::sqrtf(x)); }
inline double exp(double x) { return special(::exp(x)); }
inline double log(double x) { return special(::log(x)); }
inline double sqrt(double x) { return special(::sqrt(x)); }
inline float fmaf(float a, float b, float c) {
  emulation::observe_lane(emulation::Instruction::fma);
  return ::fmaf(a, b, c);
}
#endif

// Shuffles within parts of `width` lanes of the warp, a power of two. A lane whose source lies outside its
// part gets its own value.

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              CallSite where = CallSite::current()) {
  const int first = emulation::lane() & ~(width - 1);
  return emulation::shuffle("__shfl_sync", mask, value, first | (source & (width - 1)), where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize,
                 CallSite where = CallSite::current()) {
  const int lane = emulation::lane();
  const int source = lane - static_cast<int>(by);
  const int first = lane & ~(width - 1);
  return emulation::shuffle("__shfl_up_sync", mask, value, source < first ? lane : source, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize,
                  CallSite where = CallSite::current()) {
  const int lane = emulation::lane();
  const int source = lane ^ with;
  const int past = (lane & ~(width - 1)) + width;
  return emulation::shuffle("__shfl_xor_sync", mask, value, source >= past ? lane : source, where);
}

// The sum of the lanes' integers, modulo 2^32.
template <Word T>
T __reduce_add_sync(unsigned mask, T value, CallSite where = CallSite::current()) {
  static_assert(sizeof(T) == sizeof(unsigned));
  return emulation::reduce_add("__reduce_add_sync", mask, value, where);
}

// Votes.

inline unsigned __ballot_sync(unsigned mask, int flag, CallSite where = CallSite::current()) {
  return emulation::ballot("__ballot_sync", mask, flag != 0, where);
}
inline int __any_sync(unsigned mask, int flag, CallSite where = CallSite::current()) {
  return emulation::ballot("__any_sync", mask, flag != 0, where) != 0 ? 1 : 0;
}

// In shared and in device memory; not for floating-point numbers, whose sums depend on the order.

template <Word T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref(*address).fetch_add(value);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
