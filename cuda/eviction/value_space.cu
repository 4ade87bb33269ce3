// Lengths in the space of a query head: the choice of kernels, and their arithmetic.
#include "value_space.hpp"

#include <kvbound/cuda/support/shape_check.hpp>

#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

using namespace value_space_kernels;

int64_t gram_matrices_workspace(int64_t query_heads, int64_t head_dim) {
  return query_heads * head_dim * head_dim * static_cast<int64_t>(sizeof(double));
}

template <Storage T>
void gram_matrices(DeviceTensor<const T> output_projection, float* gram, float* factor, Workspace workspace,
                   Stream stream) {
  require_layout("output_projection", output_projection);
  const int64_t heads = output_projection.slices, head_dim = output_projection.rows;
  require_range("head_dim", head_dim, 1, kMostHeadDim);
  require_workspace(workspace, gram_matrices_workspace(heads, head_dim));
  if (heads == 0) return;
  auto* const exact = static_cast<double*>(workspace.data);
  launch_gram(output_projection, gram, exact, stream);
  launch_factor(exact, heads, head_dim, output_projection.cols, factor, stream);
}

namespace {

template <Storage T>
void lengths(const Arguments<T>& arguments, Stream stream) {
  const DeviceTensor<const T>& values = arguments.values;
  require_layout("values", values);
  require_groups(arguments.query_heads, values.slices);
  require_range("head_dim", values.cols, 1, kMostHeadDim);
  if (values.rows == 0) return;
  if (!arguments.factor) {
    launch_head_squares(values, arguments.query_heads / values.slices, arguments.norms, stream);
  } else if constexpr (Storage16<T>) {
    launch_lengths_mma(arguments, stream);
  } else {
    launch_lengths_portable(arguments, stream);
  }
}

}  // namespace

template <Storage T>
void squared_norms(DeviceTensor<const T> values, const float* factor, int64_t query_heads, float* norms,
                   Stream stream) {
  lengths<T>({values, factor, query_heads, norms, true}, stream);
}

template <Storage T>
void projected_value_norms_l2(DeviceTensor<const T> values, const float* factor, int64_t query_heads,
                              float* norms, Stream stream) {
  lengths<T>({values, factor, query_heads, norms, false}, stream);
}

template <Storage T>
KernelArithmetic norms_l2_arithmetic(int64_t head_dim) {
  KernelArithmetic arithmetic;
  arithmetic.gram_factor = true;
  if constexpr (Storage16<T>) {
    arithmetic.product_depth = 1 + mma_product_depth(head_dim);
    arithmetic.tensor_sums = mma_product_sums(head_dim);
    arithmetic.accumulation_depth = mma_square_depth(head_dim);
  } else {
    arithmetic.product_depth = 1 + portable_product_depth(head_dim);
    arithmetic.accumulation_depth = portable_square_depth(head_dim);
  }
  return arithmetic;
}

template <Storage T>
KernelArithmetic value_space_arithmetic(int64_t head_dim) {
  const KernelArithmetic norms = norms_l2_arithmetic<T>(head_dim);
  KernelArithmetic arithmetic;
  arithmetic.gram_factor = true;
  arithmetic.length_depth = norms.product_depth + norms.accumulation_depth;
  arithmetic.tensor_lengths = norms.tensor_sums;
  return arithmetic;
}

template void gram_matrices(DeviceTensor<const float>, float*, float*, Workspace, Stream);
template void gram_matrices(DeviceTensor<const Float16>, float*, float*, Workspace, Stream);
template void gram_matrices(DeviceTensor<const Bfloat16>, float*, float*, Workspace, Stream);
template void squared_norms(DeviceTensor<const float>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Float16>, const float*, int64_t, float*, Stream);
template void squared_norms(DeviceTensor<const Bfloat16>, const float*, int64_t, float*, Stream);
template void projected_value_norms_l2(DeviceTensor<const float>, const float*, int64_t, float*, Stream);
template void projected_value_norms_l2(DeviceTensor<const Float16>, const float*, int64_t, float*, Stream);
template void projected_value_norms_l2(DeviceTensor<const Bfloat16>, const float*, int64_t, float*, Stream);
template KernelArithmetic norms_l2_arithmetic<float>(int64_t);
template KernelArithmetic norms_l2_arithmetic<Float16>(int64_t);
template KernelArithmetic norms_l2_arithmetic<Bfloat16>(int64_t);
template KernelArithmetic value_space_arithmetic<float>(int64_t);
template KernelArithmetic value_space_arithmetic<Float16>(int64_t);
template KernelArithmetic value_space_arithmetic<Bfloat16>(int64_t);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
