// Which kernel of projected_value_norms runs on a device: the fastest whose results on a small
// problem are right there.
#pragma once

#include "critical_kv_norms.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace critical_kv_norms {

/// The kernels on tensor cores, which are tried in this order: wgmma, mma. Tests replace them by wrong ones.
template <Storage T>
struct TensorCoreKernels {
  void (*wgmma)(const Arguments<T>&, Stream) = launch_wgmma<T>;
  void (*mma)(const Arguments<T>&, Stream) = launch_mma<T>;
};

/// Tries the kernels whose requirements the device and head_dim meet on a problem with ragged tails
/// of tokens and columns: the first one whose every norm is within its error bound of the exact one
/// is chosen, else portable.
///
/// Waits for the device, and allocates outside of any pool; what it asks of the device is not counted. A
/// kernel that ends the process's use of the device, or never ends, cannot be passed over.
template <Storage T>
NormsChoice checked_choice(int64_t head_dim, const TensorCoreKernels<T>& kernels = {});

}  // namespace critical_kv_norms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
