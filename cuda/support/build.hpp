// One kernel source, two builds: `native`, by nvcc for GPUs, and `emulated`, by the C++ compiler for any machine.
//
// Both declare the same functions in kvbound::cuda, each in an inline namespace of its own, so that both link into one
// program. A translation unit speaks to one of them without naming it: to the native one if KVBOUND_CUDA_NATIVE is
// defined (the target kvbound::cuda_native does that for its own sources), else to the emulated one. Who needs both names
// them: cuda::native::make_session, cuda::emulated::make_session.
#pragma once

#if defined(__CUDACC__) && !defined(KVBOUND_CUDA_NATIVE)
#define KVBOUND_CUDA_NATIVE
#endif

namespace kvbound::cuda {
#ifdef KVBOUND_CUDA_NATIVE
#define KVBOUND_CUDA_BUILD native
inline namespace native {}
namespace emulated {}
#else
#define KVBOUND_CUDA_BUILD emulated
namespace native {}
inline namespace emulated {}
#endif
}  // namespace kvbound::cuda
