// OBCache's scores of a prompt: the choice of kernels, and their arithmetic.
#include "obcache.hpp"

#include <algorithm>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/primitives/row_lanes.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/window/obcache_kernels.hpp>
#include <kvbound/cuda/window/output_parts.hpp>
#include <kvbound/cuda/window/snap_kv_kernels.hpp>

#include "gram_rows.hpp"
#include "value_space.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
void window_change_scores(Change change, const WindowView<T>& window, DeviceTensor<const T> values,
                          const float* log_sum_exp, const MeasuredQueries& measured, const float* norms,
                          float* scores, Stream stream) {
  require_window(window, values);
  const obcache_kernels::Arguments<T> arguments{window_tiles::Window<T>(window),
                                                values,
                                                log_sum_exp,
                                                measured.gram_outputs,
                                                measured.output_norms,
                                                measured.dominant,
                                                measured.dominant_scores,
                                                norms,
                                                scores};
  if constexpr (Storage16<T>) {
    if (obcache_kernels::wgmma_can(arguments)) {
      obcache_kernels::launch_wgmma(change, arguments, stream);
    } else {
      obcache_kernels::launch_mma(change, arguments, stream);
    }
  } else {
    obcache_kernels::launch_portable(change, arguments, stream);
  }
}

template void window_change_scores(Change, const WindowView<float>&, DeviceTensor<const float>, const float*,
                                   const MeasuredQueries&, const float*, float*, Stream);
template void window_change_scores(Change, const WindowView<Float16>&, DeviceTensor<const Float16>,
                                   const float*, const MeasuredQueries&, const float*, float*, Stream);
template void window_change_scores(Change, const WindowView<Bfloat16>&, DeviceTensor<const Bfloat16>,
                                   const float*, const MeasuredQueries&, const float*, float*, Stream);

template <Storage T>
KernelArithmetic change_score_arithmetic(int64_t tokens, int64_t head_dim) {
  const KernelArithmetic window = window_arithmetic<T>(tokens, head_dim);
  KernelArithmetic both = attention_arithmetic<T>(tokens, head_dim);
  both.accumulation_depth = std::max(both.accumulation_depth, window.accumulation_depth);
  both.product_depth = std::max(both.product_depth, window.product_depth);
  both.tensor_sums = std::max(both.tensor_sums, window.tensor_sums);
  both.tensor_chain = std::max(both.tensor_chain, window.tensor_chain);
  both.rescalings = std::max(both.rescalings, window.rescalings);
  // Of values and outputs times G: by gram_rows.hpp and window_tiles.hpp, or a step's by row_lanes.hpp.
  const int64_t last = std::max({gram_rows::product_depth(head_dim), window_tiles::product_depth(head_dim),
                                 product_depth_of_lanes<T>(head_dim)});
  const KernelArithmetic lengths = value_space_arithmetic<T>(head_dim);
  if constexpr (Storage16<T>) {
    // By mma.sync or wgmma.
    const int64_t chain =
        std::max(row_product_chain(head_dim), snap_kv_kernels::wgmma_tensor_chain(head_dim));
    both.tensor_lengths = std::max(lengths.tensor_lengths, window_tiles::output_product_sums<T>(chain));
    both.lengths_floor = NumberParts<T>::kFloor;
  }
  both.gram_factor = true;
  both.length_depth = std::max(lengths.length_depth, kGramDepth + gram_rows::product_depth(head_dim) + last);
  return both;
}
template KernelArithmetic change_score_arithmetic<float>(int64_t, int64_t);
template KernelArithmetic change_score_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic change_score_arithmetic<Bfloat16>(int64_t, int64_t);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
