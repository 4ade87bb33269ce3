// The instructions wgmma.mma_async of m64nNk16 with sums in fp32, for code of sm_90a: d = a b + (add ? d : 0). transposed:
// B is N-major. Kernels use them through warpgroup_mma.hpp, where the layouts are described.
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
#define KVBOUND_NAMES_32                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KVBOUND_NAMES_64                                                             \
  KVBOUND_NAMES_32                                                                   \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KVBOUND_NAMES_128                                                                        \
  KVBOUND_NAMES_64                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define KVBOUND_SUMS_8(i)                                                                                 \
  "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define KVBOUND_SUMS_32(i) \
  KVBOUND_SUMS_8(i), KVBOUND_SUMS_8((i) + 8), KVBOUND_SUMS_8((i) + 16), KVBOUND_SUMS_8((i) + 24)
#define KVBOUND_SUMS_64(i) KVBOUND_SUMS_32(i), KVBOUND_SUMS_32((i) + 32)
#define KVBOUND_SUMS_128(i) KVBOUND_SUMS_64(i), KVBOUND_SUMS_64((i) + 64)

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n64k16(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32%38%38 {" KVBOUND_NAMES_32
      "}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, %39;\n"
      "}"
      : KVBOUND_SUMS_32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "C"(MmaOperands<T>::kTypes), "n"(static_cast<int>(transposed)));
}

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32%35%35 {" KVBOUND_NAMES_32
      "}, "
      "%32, %33, add, 1, 1, 0, %36;\n"
      "}"
      : KVBOUND_SUMS_32(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(MmaOperands<T>::kTypes),
        "n"(static_cast<int>(transposed)));
}

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n128k16(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32%70%70 {" KVBOUND_NAMES_64
      "}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, %71;\n"
      "}"
      : KVBOUND_SUMS_64(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "C"(MmaOperands<T>::kTypes), "n"(static_cast<int>(transposed)));
}

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32%67%67 {" KVBOUND_NAMES_64
      "}, "
      "%64, %65, add, 1, 1, 0, %68;\n"
      "}"
      : KVBOUND_SUMS_64(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(MmaOperands<T>::kTypes),
        "n"(static_cast<int>(transposed)));
}

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n256k16(float (&d)[128], const uint32_t (&a)[4], uint64_t b,
                                               bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32%134%134 {" KVBOUND_NAMES_128
      "}, "
      "{%128, %129, %130, %131}, %132, add, 1, 1, %135;\n"
      "}"
      : KVBOUND_SUMS_128(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "C"(MmaOperands<T>::kTypes), "n"(static_cast<int>(transposed)));
}

template <Storage16 T, bool transposed>
__device__ __forceinline__ void mma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32%131%131 {" KVBOUND_NAMES_128
      "}, "
      "%128, %129, add, 1, 1, 0, %132;\n"
      "}"
      : KVBOUND_SUMS_128(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "C"(MmaOperands<T>::kTypes),
        "n"(static_cast<int>(transposed)));
}

#undef KVBOUND_NAMES_32
#undef KVBOUND_NAMES_64
#undef KVBOUND_NAMES_128
#undef KVBOUND_SUMS_8
#undef KVBOUND_SUMS_32
#undef KVBOUND_SUMS_64
#undef KVBOUND_SUMS_128

}  // namespace detail
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
