// One kernel source, two builds: `native`, by nvcc for GPUs, and `emulated`, by the C++ compiler for any machine.
//
// Both declare the same functions in kvbound::cuda, each in an inline namespace of its own, so that both link into one
// program. In a translation unit unqualified names mean one of them: the native build if KVBOUND_CUDA_NATIVE is defined
// (the target kvbound::cuda_native defines it for its own sources), else the emulated build. Code that needs both
// qualifies them: cuda::native::make_session, cuda::emulated::make_session.
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
