#include "critical_kv.hpp"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "critical_kv_norms.hpp"
#include "critical_kv_norms_check.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

// Whether type, head_dim and device meet the kernel's requirements.
template <Storage T>
bool can(NormsKernel kernel, int64_t head_dim) {
  switch (kernel) {
    case NormsKernel::wgmma:
      return sizeof(T) == 2 && critical_kv_norms::wgmma_can(head_dim);
    case NormsKernel::mma:
      return sizeof(T) == 2 && critical_kv_norms::mma_can(head_dim);
    case NormsKernel::portable:
    case NormsKernel::chosen:
      return true;
  }
  return false;
}

// The choice for a type and head_dim on the current device, checked on first use.
template <Storage T>
const NormsChoice& known_choice(int64_t head_dim) {
  static std::mutex mutex;
  static std::map<std::pair<const DeviceInfo*, int64_t>, const NormsChoice> known;
  const std::lock_guard lock(mutex);
  const std::pair key(&device(), head_dim);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  if constexpr (sizeof(T) == 2) {
    return known.emplace(key, critical_kv_norms::checked_choice<T>(head_dim)).first->second;
  } else {
    return known.emplace(key, NormsChoice{NormsKernel::portable, "no tensor core kernel for F32"})
        .first->second;
  }
}

template <Storage T>
NormsKernel choose(NormsKernel wanted, int64_t head_dim) {
  if (wanted == NormsKernel::chosen) return chosen_norms_kernel<T>(head_dim);
  if (can<T>(wanted, head_dim)) return wanted;
  throw ShapeMismatch("head_dim " + std::to_string(head_dim) + " of " + std::string(name(dtype_of<T>)) +
                      " numbers is nothing for the " + (wanted == NormsKernel::mma ? "mma" : "wgmma") +
                      " kernel on a device of compute capability " +
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
NormsChoice norms_choice(int64_t head_dim) {
  return known_choice<T>(head_dim);
}

template NormsChoice norms_choice<float>(int64_t);
template NormsChoice norms_choice<Float16>(int64_t);
template NormsChoice norms_choice<Bfloat16>(int64_t);

template <Storage T>
NormsKernel chosen_norms_kernel(int64_t head_dim) {
  return known_choice<T>(head_dim).kernel;
}

template NormsKernel chosen_norms_kernel<float>(int64_t);
template NormsKernel chosen_norms_kernel<Float16>(int64_t);
template NormsKernel chosen_norms_kernel<Bfloat16>(int64_t);

template <Storage T>
void projected_value_norms(DeviceTensor<const T> values, DeviceTensor<const T> output_projection,
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
    if (chosen == NormsKernel::wgmma) return critical_kv_norms::launch_wgmma(arguments, stream);
    if (chosen == NormsKernel::mma) return critical_kv_norms::launch_mma(arguments, stream);
  }
  critical_kv_norms::launch_portable(arguments, stream);
}

template void projected_value_norms(DeviceTensor<const float>, DeviceTensor<const float>, float*, Stream,
                                    NormsKernel);
template void projected_value_norms(DeviceTensor<const Float16>, DeviceTensor<const Float16>, float*, Stream,
                                    NormsKernel);
template void projected_value_norms(DeviceTensor<const Bfloat16>, DeviceTensor<const Bfloat16>, float*,
                                    Stream, NormsKernel);

KernelArithmetic norms_arithmetic(int64_t head_dim, int64_t model_dim, NormsKernel kernel) {
  using namespace critical_kv_norms;
  KernelArithmetic arithmetic{.precision = Precision::fp32,
                              .accumulation_depth = portable_accumulation_depth(model_dim),
                              .product_depth = portable_product_depth(head_dim)};
  if (kernel == NormsKernel::mma) {
    arithmetic.accumulation_depth = mma_accumulation_depth(model_dim);
    arithmetic.product_depth = mma_product_depth(head_dim);
    arithmetic.tensor_sums = kChainedTensorSums;
    arithmetic.tensor_chain = mma_tensor_chain();
  } else if (kernel == NormsKernel::wgmma) {
    arithmetic.accumulation_depth = wgmma_accumulation_depth(model_dim);
    arithmetic.product_depth = 0;
    arithmetic.tensor_sums = kChainedTensorSums;
    arithmetic.tensor_chain = wgmma_tensor_chain(head_dim);
  }
  return arithmetic;
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
