// Lengths in the space of a query head: the choice of kernels, and their arithmetic.
#include "value_space.hpp"

#include <kvbound/cuda/support/shape_check.hpp>

#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

using namespace value_space_kernels;

template <Storage T>
void gram_matrices(DeviceTensor<const T> output_projection, float* gram, Stream stream) {
  require_layout("output_projection", output_projection);
  require_range("head_dim", output_projection.rows, 1, kMostHeadDim);
  if (output_projection.slices == 0) return;
  launch_gram(output_projection, gram, stream);
}

template <Storage T>
void squared_norms(DeviceTensor<const T> values, const float* gram, int64_t query_heads, float* norms,
                   Stream stream) {
  require_layout("values", values);
  require_groups(query_heads, values.slices);
  require_range("head_dim", values.cols, 1, kMostHeadDim);
  if (values.rows == 0) return;
  if (!gram) return launch_head_squares(values, query_heads / values.slices, norms, stream);
  const Arguments<T> arguments{values, gram, query_heads, norms};
  if constexpr (Storage16<T>) {
    launch_squares_mma(arguments, stream);
  } else {
    launch_squares_portable(arguments, stream);
  }
}

template <Storage T>
void norms_of_squares(DeviceTensor<const T> values, DeviceTensor<const T> output_projection,
                      const float* gram, float* norms, Stream stream) {
  require_layout("values", values);
  require_layout("output_projection", output_projection);
  require_groups(output_projection.slices, values.slices);
  require_equal("columns of values", values.cols, "rows of output_projection", output_projection.rows);
  require_range("head_dim", values.cols, 1, kMostHeadDim);
  if (values.rows == 0) return;
  launch_roots<T>({values, output_projection, gram, norms, gram_share(values.cols)}, stream);
}

template <Storage T>
void projected_value_norms_l2(DeviceTensor<const T> values, DeviceTensor<const T> output_projection,
                              const float* gram, float* norms, Stream stream) {
  squared_norms<T>(values, gram, output_projection.slices, norms, stream);
  norms_of_squares<T>(values, output_projection, gram, norms, stream);
}

template <Storage T>
KernelArithmetic value_space_arithmetic(int64_t head_dim) {
  KernelArithmetic arithmetic;
  if constexpr (Storage16<T>) {
    arithmetic.length_depth = kGramDepth + mma_square_depth(head_dim);
    arithmetic.tensor_lengths = mma_square_sums(head_dim);
  } else {
    arithmetic.length_depth = kGramDepth + portable_square_depth(head_dim);
  }
  return arithmetic;
}

template <Storage T>
KernelArithmetic norms_l2_arithmetic(int64_t head_dim, int64_t model_dim) {
  KernelArithmetic arithmetic = value_space_arithmetic<T>(head_dim);
  arithmetic.product_depth = root_product_depth(head_dim);
  arithmetic.accumulation_depth = root_accumulation_depth(model_dim);
  arithmetic.gram_share = gram_share(head_dim);
  return arithmetic;
}

template void gram_matrices(DeviceTensor<const float>, float*, Stream);
template void gram_matrices(DeviceTensor<const Float16>, float*, Stream);
template void gram_matrices(DeviceTensor<const Bfloat16>, float*, Stream);
template void squared_norms(DeviceTensor<const float>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Float16>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Bfloat16>, const float*, int64_t, float*, Stream);
template void norms_of_squares(DeviceTensor<const float>, DeviceTensor<const float>, const float*, float*,
                               Stream);
template void norms_of_squares(DeviceTensor<const Float16>, DeviceTensor<const Float16>, const float*, float*,
                               Stream);
template void norms_of_squares(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>, const float*,
                               float*, Stream);
template void projected_value_norms_l2(DeviceTensor<const float>, DeviceTensor<const float>, const float*,
                                       float*, Stream);
template void projected_value_norms_l2(DeviceTensor<const Float16>, DeviceTensor<const Float16>, const float*,
                                       float*, Stream);
template void projected_value_norms_l2(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>,
                                       const float*, float*, Stream);
template KernelArithmetic norms_l2_arithmetic<float>(int64_t, int64_t);
template KernelArithmetic norms_l2_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic norms_l2_arithmetic<Bfloat16>(int64_t, int64_t);
template KernelArithmetic value_space_arithmetic<float>(int64_t);
template KernelArithmetic value_space_arithmetic<Float16>(int64_t);
template KernelArithmetic value_space_arithmetic<Bfloat16>(int64_t);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
