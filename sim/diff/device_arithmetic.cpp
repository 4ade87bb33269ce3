#include "device_arithmetic.hpp"

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/snap_kv.hpp>

namespace kvbound::sim {
namespace {

cuda::NormsKernel norms_kernel(Dtype storage, int64_t head_dim) {
  if (storage == Dtype::f16) return cuda::chosen_norms_kernel<cuda::Float16>(head_dim);
  if (storage == Dtype::bf16) return cuda::chosen_norms_kernel<cuda::Bfloat16>(head_dim);
  return cuda::chosen_norms_kernel<float>(head_dim);
}

}  // namespace

OperationArithmetic device_arithmetic(const traces::TraceInfo& trace, Dtype storage, int64_t entries) {
  const int64_t head_dim = trace.shape.head_dim;
  OperationArithmetic arithmetic(reference::single_precision());
  arithmetic.window_attention.chain = cuda::window_chain(trace.prompt_tokens);
  arithmetic.window_attention.product_chain = cuda::window_product_chain(head_dim);
  arithmetic.window_attention.rescalings = cuda::window_rescalings(trace.prompt_tokens);
  const cuda::NormsKernel kernel = norms_kernel(storage, head_dim);
  arithmetic.projected_value_norms.chain = cuda::norms_chain(trace.shape.model_dim);
  arithmetic.projected_value_norms.product_chain = cuda::norms_product_chain(head_dim, kernel);
  arithmetic.projected_value_norms.tensor_sums = cuda::norms_tensor_sums(kernel);
  arithmetic.attention.chain = cuda::attention_chain(entries);
  arithmetic.attention.product_chain = cuda::attention_product_chain(head_dim);
  arithmetic.attention.rescalings = cuda::attention_rescalings(entries);
  return arithmetic;
}

}  // namespace kvbound::sim
