// Copies of boxes of three-dimensional tensors to shared memory by one thread (TMA:
// cp.async.bulk.tensor, sm_90).
//
// A box lies densely in shared memory, rows of its innermost dimension one behind the other, permuted by the
// swizzle; numbers outside the tensor are zero. Its address is a multiple of kSwizzlePeriod. Its first
// column, also one outside, is a multiple of 16 bytes from column 0: any other is an illegal instruction. The
// copy is complete when its bytes, those of numbers outside included, have been counted by the mbarrier.
//
// source  PTX ISA, 5.5 (tensors) and 9.7.9.25.5 (tensor copies); of the first column: an H200, whose
//         copies from others failed
#pragma once

#include "mbarrier.hpp"
#include "tensor_map.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE

/// Begins to copy the box whose first number is in this column, row and plane; they
/// may lie outside the tensor.
__device__ __forceinline__ void load_box(void* shared, const TensorMap& map, uint64_t* barrier, int column,
                                         int row, int plane) {
  if constexpr (kHasClusters) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(plane)
        : "memory");
  } else {
    __trap();
  }
}

#else

inline void load_box(void* shared, const TensorMap& map, uint64_t* barrier, int column, int row, int plane,
                     CallSite where = CallSite::current()) {
  emulation::load_box(shared, map, barrier, {column, row, plane}, where);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
