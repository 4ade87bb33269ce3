// The kernels that OBCache's scores of a prompt choose from: by wgmma or mma.sync for 16-bit types,
// by fp32 multiply-adds for fp32.
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>

#include "obcache_terms.hpp"
#include "window_tiles.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace obcache_kernels {

template <Storage T>
struct Arguments {
  window_tiles::Window<T> window;
  DeviceTensor<const T> values;
  const float* log_sum_exp;      ///< [query_heads, window]
  const float* gram_outputs;     ///< [window, query_heads, head_dim]: o G
  const float* output_norms;     ///< [window, query_heads]: o G o
  const int64_t* dominant;       ///< [window, query_heads]
  const float* dominant_scores;  ///< [window, query_heads]
  const float* norms;            ///< [query_heads, tokens]
  float* scores;                 ///< [query_heads, tokens]
};

/// Whether type, shapes and device meet the wgmma kernel's requirements.
template <Storage16 T>
bool wgmma_can(const Arguments<T>& arguments);

template <Storage16 T>
void launch_wgmma(Change change, const Arguments<T>& arguments, Stream stream);
template <Storage16 T>
void launch_mma(Change change, const Arguments<T>& arguments, Stream stream);
void launch_portable(Change change, const Arguments<float>& arguments, Stream stream);

}  // namespace obcache_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
