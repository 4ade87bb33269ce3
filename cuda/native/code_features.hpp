// What the kernels' code for a device may use.
#pragma once

#include <kvbound/cuda/support/build.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

struct CodeFeatures {
  bool clusters = false, wgmma = false;  ///< as DeviceInfo's
};

/// Of the code that the current device runs, whose machine may do more than the code was compiled for.
CodeFeatures code_features();

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
