#include "code_features.hpp"

#include <kvbound/cuda/primitives/hopper.hpp>

#include "check.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kPlain = 32, kClusters = 64, kWgmma = 96;  // threads

// Never launched: the most threads of its blocks say what its code for a device was compiled for.
__global__ void __launch_bounds__(kHasWgmma ? kWgmma : kHasClusters ? kClusters : kPlain) features_kernel() {}

}  // namespace

CodeFeatures code_features() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, features_kernel), "cudaFuncGetAttributes");
  return {.clusters = attributes.maxThreadsPerBlock >= kClusters,
          .wgmma = attributes.maxThreadsPerBlock >= kWgmma};
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
