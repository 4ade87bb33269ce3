#include "critical_kv.hpp"

#include <algorithm>
#include <string>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "critical_kv_norms.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

template <Storage T>
NormsKernel choose(NormsKernel wanted, int64_t head_dim) {
  const NormsKernel best = chosen_norms_kernel<T>(head_dim);
  if (wanted == NormsKernel::chosen || wanted == best) return best;
  if (wanted == NormsKernel::portable) return wanted;
  throw ShapeMismatch("head_dim " + std::to_string(head_dim) + " of " + std::string(name(dtype_of<T>)) +
                      " numbers is nothing for the mma kernel on a device of compute capability " +
                      std::to_string(device().compute_capability));
}

constexpr int kThreads = 256;

struct StageTwoArguments {
  const float* head_scores;
  const float* norms;
  int64_t norms_stride;
  int64_t group_size;
  int64_t cols;
  float epsilon;
  GqaProduct gqa;
  float* scores;
};

// Stage two's score of one entry and KV head: a thread adds the query heads of the group in their order.
//
// grid       (ceil(cols / 256), kv_heads)
// block      256; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: 8 query_heads cols; written: 4 kv_heads cols
// FLOP       5 query_heads cols
__global__ void __launch_bounds__(kThreads) stage_two_scores_kernel(StageTwoArguments p) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= p.cols) return;
  const int64_t first_head = static_cast<int64_t>(blockIdx.y) * p.group_size;
  float products = 0;
  float attention = 0;
  float norm = 0;
  for (int64_t h = first_head; h < first_head + p.group_size; ++h) {
    const float head_score = p.head_scores[h * p.cols + j];
    const float head_norm = p.norms[h * p.norms_stride + j];
    products += (head_score + p.epsilon) * head_norm;
    attention += head_score;
    norm += head_norm;
  }
  const auto group_size = static_cast<float>(p.group_size);
  p.scores[blockIdx.y * p.cols + j] = p.gqa == GqaProduct::mean_of_products
                                          ? products / group_size
                                          : (attention / group_size + p.epsilon) * (norm / group_size);
}

}  // namespace

template <Storage T>
NormsKernel chosen_norms_kernel(int64_t head_dim) {
  const bool can = sizeof(T) == 2 && head_dim % 16 == 0 && device().compute_capability >= 80;
  return can ? NormsKernel::mma : NormsKernel::portable;
}

template NormsKernel chosen_norms_kernel<float>(int64_t);
template NormsKernel chosen_norms_kernel<Float16>(int64_t);
template NormsKernel chosen_norms_kernel<Bfloat16>(int64_t);

template <Storage T>
void projected_value_norms(DeviceTensor<const T> values, DeviceTensor<const T> output_projection, Norm norm,
                           float* norms, Stream stream, NormsKernel kernel) {
  require_layout("values", values);
  require_layout("output_projection", output_projection);
  require_groups(output_projection.slices, values.slices);
  require_equal("columns of values", values.cols, "rows of output_projection", output_projection.rows);
  require_range("head_dim", values.cols, 1, kMostHeadDim);
  const NormsKernel chosen = choose<T>(kernel, values.cols);
  if (values.rows == 0) return;
  const critical_kv_norms::Arguments<T> arguments{values, output_projection, norms};
  if constexpr (sizeof(T) == 2) {
    if (chosen == NormsKernel::mma) return critical_kv_norms::launch_mma(arguments, norm, stream);
  }
  critical_kv_norms::launch_portable(arguments, norm, stream);
}

template void projected_value_norms(DeviceTensor<const float>, DeviceTensor<const float>, Norm, float*,
                                    Stream, NormsKernel);
template void projected_value_norms(DeviceTensor<const Float16>, DeviceTensor<const Float16>, Norm, float*,
                                    Stream, NormsKernel);
template void projected_value_norms(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>, Norm, float*,
                                    Stream, NormsKernel);

KernelArithmetic norms_arithmetic(int64_t head_dim, int64_t model_dim, NormsKernel kernel) {
  using namespace critical_kv_norms;
  const bool mma = kernel == NormsKernel::mma;
  return {.precision = Precision::fp32,
          .accumulation_depth =
              std::max(portable_accumulation_depth(model_dim), mma_accumulation_depth(model_dim)),
          .product_depth = mma ? mma_product_depth(head_dim) : portable_product_depth(head_dim),
          .tensor_sums = mma ? kChainedTensorSums : 0,
          .tensor_chain = mma ? mma_tensor_chain() : 1};
}

void stage_two_scores(const float* head_scores, const float* norms, int64_t norms_stride, int64_t query_heads,
                      int64_t kv_heads, int64_t cols, double epsilon, GqaProduct gqa, float* scores,
                      Stream stream) {
  require_groups(query_heads, kv_heads);
  require_range("columns of the scores", cols, 0, INT64_MAX);
  require_range("norms_stride", norms_stride, cols, INT64_MAX);
  if (cols == 0) return;
  const StageTwoArguments arguments{
      head_scores, norms, norms_stride, query_heads / kv_heads, cols, static_cast<float>(epsilon),
      gqa,         scores};
  launch<stage_two_scores_kernel>(
      {extent(ceil_division(cols, kThreads), kv_heads), extent(kThreads), 0, stream}, arguments);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
