#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include <kvbound/cuda/native/check.hpp>

#include "flashinfer.hpp"

namespace kvbound::sim {

// The prefill kernel, for a prompt of one query.
void flashinfer_attention_mma(const AttentionCall& call, cuda::Stream stream) {
  using Number = __nv_bfloat16;
  using Variant = flashinfer::DefaultAttention<false, false, false, false>;
  constexpr int64_t kHeadDim = kFlashInferHeadDim;
  const auto numbers = [](const cuda::Bfloat16* from) {
    return reinterpret_cast<Number*>(const_cast<cuda::Bfloat16*>(from));  // only the output is written
  };
  const auto query_heads = static_cast<uint32_t>(call.query_heads);
  const auto tokens = static_cast<uint32_t>(call.tokens);
  const flashinfer::SinglePrefillParams<Number, Number, Number> params(
      numbers(call.queries), numbers(call.keys), numbers(call.values), nullptr, numbers(call.output), nullptr,
      nullptr, query_heads, static_cast<uint32_t>(call.kv_heads), 1, tokens, query_heads * kHeadDim, kHeadDim,
      kHeadDim, tokens * kHeadDim, kHeadDim, -1, 0, static_cast<float>(call.scale), 1, 1e4);
  cuda::native::check(
      flashinfer::SinglePrefillWithKVCacheDispatched<kHeadDim, kHeadDim, flashinfer::PosEncodingMode::kNone,
                                                     false, flashinfer::MaskMode::kNone, false, Variant>(
          params, static_cast<Number*>(call.workspace.data), stream),
      "FlashInfer's single prefill");
}

}  // namespace kvbound::sim
