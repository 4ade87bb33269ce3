// What every kernel needs: launches, shared memory, lanes, loads. Compiled by nvcc this is CUDA, by
// the C++ compiler it is the emulation of CUDA (emulation/language.hpp), which runs a block's threads
// in turns on a processor.
//
// Rules for kernels: they live in kvbound::cuda; they have no static __shared__ variables, all shared memory
// comes from SharedMemory; blocks are whole warps; no thread returns before the block's last barrier; every
// *_sync names all lanes that take part; no float atomics.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <kvbound/cuda/support/build.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/storage.hpp>
#include <kvbound/reference/core/call_site.hpp>

#ifdef KVBOUND_CUDA_NATIVE
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif
#include <cuda_runtime.h>
#else
#include <kvbound/cuda/emulation/grid_limit.hpp>
#include <kvbound/cuda/emulation/language.hpp>
#include <kvbound/cuda/emulation/recorded_work.hpp>
#include <kvbound/reference/core/float16.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// number / divisor, rounded up; for number >= 0 and divisor > 0.
__host__ __device__ constexpr int64_t ceil_division(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor;
}
/// The smallest multiple of `unit` that is not below `number`.
__host__ __device__ constexpr int64_t round_up(int64_t number, int64_t unit) {
  return ceil_division(number, unit) * unit;
}

/// The most blocks of a grid along y, and along z. Emulated: of extent_of_rows, fewer if a test sets it so.
inline constexpr int64_t kMostYZ = 65535;
#ifdef KVBOUND_CUDA_NATIVE
inline int64_t grid_rows() { return kMostYZ; }
#else
using emulation::grid_rows;
#endif

/// A grid's or block's extent. Throws ShapeMismatch for a length that is negative or above a grid's limit:
/// 2^31 - 1 blocks along x, 65,535 along y and z.
inline dim3 extent(int64_t x, int64_t y = 1, int64_t z = 1) {
  constexpr int64_t kMostX = std::numeric_limits<int>::max();
  const auto require_within = [](char axis, int64_t length, int64_t most) {
    if (0 <= length && length <= most) return;
    throw ShapeMismatch("a launch has 0.." + std::to_string(most) + " blocks or threads along " + axis +
                        ", not " + std::to_string(length));
  };
  require_within('x', x, kMostX);
  require_within('y', y, kMostYZ);
  require_within('z', z, kMostYZ);
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

/// A grid with so many blocks along x for each of any number of rows, which lie along y and, if that is too
/// short, along z: a block's row is row_of_block(). A few blocks may lie behind the last row; they return.
inline dim3 extent_of_rows(int64_t blocks, int64_t rows) {
  const int64_t layers = std::max<int64_t>(1, ceil_division(rows, grid_rows()));
  return extent(blocks, ceil_division(rows, layers), layers);
}

/// The configuration of a launch, and the place in our source that requests it.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  int64_t shared_bytes;
  Stream stream;
  CallSite where;
  dim3 cluster = dim3(1);
  bool is_dependent = false;  ///< launch_dependent

  LaunchShape(dim3 blocks, dim3 threads, int64_t shared, Stream queue, CallSite caller = CallSite::current())
      : grid(blocks), block(threads), shared_bytes(shared), stream(queue), where(caller) {}

  /// The same in clusters of so many blocks, at most 8, which divide the grid; where device().has_clusters.
  LaunchShape in_clusters(dim3 blocks) const {
    LaunchShape shape = *this;
    shape.cluster = blocks;
    return shape;
  }
};

#ifdef KVBOUND_CUDA_NATIVE
namespace detail {
void launch(const void* kernel, const LaunchShape& shape, void** arguments);
}
#endif

template <auto kernel>
struct Launch;
template <class... P, void (*kernel)(P...)>
struct Launch<kernel> {
  void operator()(const LaunchShape& shape, std::type_identity_t<P>... arguments) const {
#ifdef KVBOUND_CUDA_NATIVE
    void* pointers[] = {static_cast<void*>(&arguments)..., nullptr};
    detail::launch(reinterpret_cast<const void*>(kernel), shape, pointers);
#else
    const std::tuple<P...> bound(arguments...);
    const auto call = [](const void* all) {
      std::apply([](const P&... own) { kernel(own...); }, *static_cast<const std::tuple<P...>*>(all));
    };
    emulation::run_or_record([bound, call, shape] {
      ++counters().launches;
      const emulation::Kernel with_arguments{call, &bound, name(), emulation::kCounted};
      emulation::run_grid({with_arguments, shape.grid, shape.block, shape.shared_bytes, emulation::schedule(),
                           shape.cluster, shape.is_dependent},
                          shape.where);
    });
#endif
  }

#ifndef KVBOUND_CUDA_NATIVE
  static const char* name() { return typeid(Launch).name(); }  // mangled, the kernel's in it
#endif
};

/// Queues the kernel: launch<kernel>(shape, arguments...). Throws DeviceError if the launch fails; emulated,
/// also if the kernel has a fault.
template <auto kernel>
inline constexpr Launch<kernel> launch{};

/// A cursor over the block's dynamic shared memory. In a kernel `array` returns one array behind the other;
/// on the host it returns null and only counts bytes. So a struct of arrays whose constructor takes them from
/// a cursor defines both the layout and, by shared_bytes, its size.
class SharedMemory {
 public:
  /// `count` objects, not initialised (emulated: NaN, guarded, and the same in every thread). alignment: a
  /// power of two, 16 to 1024 bytes.
  template <class T>
#ifdef KVBOUND_CUDA_NATIVE
  __host__ __device__ T* array(int64_t count, int alignment = 16) {
    const Bytes begin = place<T>(count, alignment);
#ifdef __CUDA_ARCH__
    extern __shared__ __align__(1024) unsigned char kvbound_dynamic_shared_memory[];
    return reinterpret_cast<T*>(kvbound_dynamic_shared_memory + begin);
#else
    static_cast<void>(begin);
    return nullptr;
#endif
  }
#else
  T* array(int64_t count, int alignment = 16, CallSite where = CallSite::current()) {
    const Bytes begin = place<T>(count, alignment);
    if (!emulation::in_kernel()) return nullptr;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    return static_cast<T*>(emulation::shared_array(arrays_++, begin, bytes, alignment, where));
  }
#endif

  /// Bytes up to the end of the last array.
  __host__ __device__ int64_t bytes() const { return used_; }

 private:
#ifdef __CUDA_ARCH__
  using Bytes = uint32_t;  // what fits; sums of 64 bits would be most of what precedes a block's first load
#else
  using Bytes = int64_t;
#endif

  template <class T>
  __host__ __device__ Bytes place(int64_t count, int alignment) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 16);
    const auto unit = static_cast<Bytes>(alignment), begin = (used_ + unit - 1) / unit * unit;
    used_ = begin + static_cast<Bytes>(count) * static_cast<Bytes>(sizeof(T));
    return begin;
  }

  Bytes used_ = 0;
#ifndef KVBOUND_CUDA_NATIVE
  int arrays_ = 0;
#endif
};

/// The bytes of shared memory that Layout(SharedMemory&, sizes...) takes.
template <class Layout, class... Sizes>
int64_t shared_bytes(Sizes... sizes) {
  SharedMemory counter;
  static_cast<void>(Layout(counter, sizes...));
  return counter.bytes();
}

/// The first of these block shapes whose Layout(SharedMemory&, shape) fits into the shared memory that a
/// block of this device may have. Throws ShapeMismatch if there is none.
template <class Layout, class Shape>
Shape first_that_fits(std::initializer_list<Shape> shapes) {
  const int64_t most = device().shared_memory_per_block;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Shape& shape : shapes) {
    const int64_t bytes = shared_bytes<Layout>(shape);
    if (bytes <= most) return shape;
    least = std::min(least, bytes);
  }
  throw ShapeMismatch("at least " + std::to_string(least) +
                      " bytes of shared memory are needed but a block of this device has at most " +
                      std::to_string(most));
}

#if !defined(KVBOUND_CUDA_NATIVE) || defined(__CUDACC__)  // what follows is for kernels

/// The mask of a whole warp.
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// The calling thread's lane in its warp and its warp's number in the block; blocks are one-dimensional.
__device__ inline int lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / 32; }

/// The block's row in a grid of extent_of_rows.
__device__ inline int64_t row_of_block() { return int64_t{blockIdx.z} * gridDim.y + blockIdx.y; }

/// The natural log of 0: the largest logit of no entries.
inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Exact; a NaN stays NaN.
__host__ __device__ inline float to_float(float number) { return number; }
#ifdef KVBOUND_CUDA_NATIVE
__device__ inline float to_float(Bfloat16 number) { return __uint_as_float(uint32_t{number.bits} << 16); }
__device__ inline float to_float(Float16 number) { return __half2float(__ushort_as_half(number.bits)); }
#else
inline float to_float(Bfloat16 number) { return __uint_as_float(uint32_t{number.bits} << 16); }
inline float to_float(Float16 number) {
  constexpr uint32_t kExponent = 0x7c00;
  const uint32_t sign = (number.bits & 0x8000U) << 16;
  // As bits of a binary32 the number is 2^112 times too small; the product makes subnormal numbers normal.
  const float small = __uint_as_float((number.bits & 0x7fffU) << 13);
  const bool finite = (number.bits & kExponent) != kExponent;
  const uint32_t magnitude =
      finite ? __float_as_uint(small * 0x1p112F) : __float_as_uint(small) | 0x7f800000U;
  return __uint_as_float(sign | magnitude);
}
#endif

/// The number as it is stored, rounded once to nearest, ties to even; too large ones become infinity.
template <Storage T>
__device__ T to_storage(float number) {
  if constexpr (std::is_same_v<T, float>) {
    return number;
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    const uint32_t bits = __float_as_uint(number);
    if (number != number) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  } else {
#ifdef KVBOUND_CUDA_NATIVE
    return {__half_as_ushort(__float2half_rn(number))};
#else
    return {to_float16(number)};
#endif
  }
}

/// kVector<T> stored numbers as fp32.
template <Storage T>
struct Vector {
  float values[kVector<T>];
};

/// The numbers in the 16 bytes at `from`, which are 16-byte aligned, in device or shared memory.
template <Storage T>
#ifdef KVBOUND_CUDA_NATIVE
__device__ __forceinline__ Vector<T> load16(const T* from) {
#else
inline Vector<T> load16(const T* from, CallSite where = CallSite::current()) {
  emulation::require_aligned(from, 16, "load16", where);
#endif
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  if constexpr (std::is_same_v<T, float>) {
    return {{__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
             __uint_as_float(words.w)}};
  } else {
    const auto low = [](uint32_t word) { return to_float(T{static_cast<uint16_t>(word & 0xffff)}); };
    const auto high = [](uint32_t word) { return to_float(T{static_cast<uint16_t>(word >> 16)}); };
    return {{low(words.x), high(words.x), low(words.y), high(words.y), low(words.z), high(words.z),
             low(words.w), high(words.w)}};
  }
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
