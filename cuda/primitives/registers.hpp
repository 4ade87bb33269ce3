// Registers that one warpgroup gives up for another to have (setmaxnreg, sm_90a): those of a producer,
// which needs few, for those whose sums need many. The kernel's __launch_bounds__ has to say how many
// threads a block has, so that ptxas knows with how many registers it begins; a raise waits until
// others have given up enough.
//
// source  PTX ISA, 9.7.19.5 (setmaxnreg)
#pragma once

#include "hopper.hpp"

#ifndef KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/emulation/warpgroup_mma.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The registers with which a thread of such a kernel begins, if its blocks have a multiprocessor each. No
/// raise can take more than the block began with: it would wait forever.
constexpr int launch_registers(int threads) { return 65536 / threads / 8 * 8; }

constexpr bool can_be_set(int registers) { return 24 <= registers && registers <= 256 && registers % 8 == 0; }

#ifdef KVBOUND_CUDA_NATIVE

/// From now on a thread has `registers`, which are not fewer than before. All warps of a warpgroup take part.
template <int registers>
__device__ __forceinline__ void raise_registers() {
  static_assert(can_be_set(registers));
  if constexpr (kHasWgmma) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
  } else {
    __trap();
  }
}

/// From now on a thread has `registers`, which are not more than before.
template <int registers>
__device__ __forceinline__ void lower_registers() {
  static_assert(can_be_set(registers));
  if constexpr (kHasWgmma) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
  } else {
    __trap();
  }
}

#else

template <int registers>
void raise_registers(CallSite where = CallSite::current()) {
  static_assert(can_be_set(registers));
  emulation::set_registers(registers, true, where);
}

template <int registers>
void lower_registers(CallSite where = CallSite::current()) {
  static_assert(can_be_set(registers));
  emulation::set_registers(registers, false, where);
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
