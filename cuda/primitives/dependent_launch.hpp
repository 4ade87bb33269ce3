// Programmatic dependent launches: a kernel begins while the one before ends, so that neither the launch nor
// what a kernel does before its first access to device memory takes time.
#pragma once

#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Queues the kernel as launch does; where it is compiled for compute capability 9.0 its blocks may begin
/// when all blocks of the kernel before have called allow_next_launch, or have ended. All its threads call
/// await_previous_launch before they read or write device memory; emulated, it is a fault if one does not.
///
/// So what a kernel writes is complete for all that follow: a kernel ends behind the one that it waited for.
template <auto kernel>
struct LaunchDependent;
template <class... P, void (*kernel)(P...)>
struct LaunchDependent<kernel> {
  void operator()(LaunchShape shape, std::type_identity_t<P>... arguments) const {
    shape.is_dependent = true;
    launch<kernel>(shape, arguments...);
  }
};
template <auto kernel>
inline constexpr LaunchDependent<kernel> launch_dependent{};

#if !defined(KVBOUND_CUDA_NATIVE) || defined(__CUDACC__)

/// The next kernel may begin: its blocks take places that this one's leave.
__device__ __forceinline__ void allow_next_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Returns when the kernel before has ended and what it has written can be read. A no-op in a kernel that was
/// launched otherwise.
#ifdef KVBOUND_CUDA_NATIVE
__device__ __forceinline__ void await_previous_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#else
inline void await_previous_launch() { emulation::await_previous_launch(); }
#endif

/// Both, as the first statement of a kernel.
__device__ __forceinline__ void begin_dependent_launch() {
  allow_next_launch();
  await_previous_launch();
}

#endif

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
