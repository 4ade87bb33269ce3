// One kernel source, three builds: `native`, by nvcc for GPUs, `emulated`, by the C++ compiler for any
// machine, and `counted`, which is the emulated one with kernels that say what they do (counting/).
//
// They declare the same functions in kvbound::cuda, each in an inline namespace of its own, so that all link
// into one program. In a translation unit unqualified names mean one of them: the native build if
// KVBOUND_CUDA_NATIVE is defined (the target kvbound::cuda_native defines it for its own sources), the
// counted build if KVBOUND_CUDA_COUNTED is, else the emulated build. Code that needs several qualifies them:
// cuda::native::make_session, cuda::emulated::make_session.
#pragma once

#if defined(__CUDACC__) && !defined(KVBOUND_CUDA_NATIVE)
#define KVBOUND_CUDA_NATIVE
#endif

namespace kvbound::cuda {
#ifdef KVBOUND_CUDA_NATIVE
#define KVBOUND_CUDA_BUILD native
inline namespace native {}
namespace emulated {}
namespace counted {}
#elif defined(KVBOUND_CUDA_COUNTED)
#define KVBOUND_CUDA_BUILD counted
namespace native {}
namespace emulated {}
inline namespace counted {}
#else
#define KVBOUND_CUDA_BUILD emulated
namespace native {}
inline namespace emulated {}
namespace counted {}
#endif
}  // namespace kvbound::cuda
