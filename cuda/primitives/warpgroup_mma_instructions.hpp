// The instructions wgmma.mma_async of m64n128k16 with sums in fp32, for code of sm_90a: d = a b + (add ? d :
// 0). transposed: B is N-major. Kernels use them through warpgroup_mma.hpp, where the layouts are described.
//
// source  PTX ISA, 9.7.15.5.2 (wgmma.mma_async)
#pragma once

#include "hopper.hpp"
#include "tensor_core.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace detail {

/// The types of A and B in the instruction's name.
template <Storage16 T>
struct MmaOperands {
  static constexpr char kTypes[] = ".bf16";
};
template <>
struct MmaOperands<Float16> {
  static constexpr char kTypes[] = ".f16";
};

// The numbers of a lane's sums in the instruction's text, and the sums as its operands.
#define KVBOUND_NAMES                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"             \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KVBOUND_SUMS_8(i)                                                                                 \
  "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define KVBOUND_SUMS_32(i) \
  KVBOUND_SUMS_8(i), KVBOUND_SUMS_8((i) + 8), KVBOUND_SUMS_8((i) + 16), KVBOUND_SUMS_8((i) + 24)
#define KVBOUND_SUMS KVBOUND_SUMS_32(0), KVBOUND_SUMS_32(32)

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n128k16(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32%70%70 {" KVBOUND_NAMES
      "}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, %71;\n"
      "}"
      : KVBOUND_SUMS
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "C"(MmaOperands<T>::kTypes), "n"(static_cast<int>(transposed)));
}

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32%67%67 {" KVBOUND_NAMES
      "}, "
      "%64, %65, add, 1, 1, 0, %68;\n"
      "}"
      : KVBOUND_SUMS
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(MmaOperands<T>::kTypes),
        "n"(static_cast<int>(transposed)));
}

#undef KVBOUND_NAMES
#undef KVBOUND_SUMS_8
#undef KVBOUND_SUMS_32
#undef KVBOUND_SUMS

}  // namespace detail
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
