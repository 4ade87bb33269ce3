// Which kernel of the search for nearest keys runs on a device: the fastest whose results on a small
// problem are right there.
#pragma once

#include "nearest_key_search.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace nearest_key_search {

/// The kernels on tensor cores, which are tried in this order: wgmma, mma. Tests replace them by wrong ones.
template <Storage T>
struct TensorCoreKernels {
  void (*wgmma)(const Arguments<T>&, Stream) = launch_wgmma<false, T>;
  void (*mma)(const Arguments<T>&, Stream) = launch_mma<false, T>;
};

/// Tries the kernels whose requirements the device and head_dim meet on a problem with ragged tails of
/// leaving and kept keys: the first one whose every cosine is within its error bound of the exact one, and
/// not clearly below the largest, is chosen, else portable.
///
/// Waits for the device, and allocates outside of any pool; what it asks of the device is not counted. A
/// kernel that ends the process's use of the device, or never ends, cannot be passed over.
template <Storage T>
SearchChoice checked_choice(int64_t head_dim, const TensorCoreKernels<T>& kernels = {});

}  // namespace nearest_key_search
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
