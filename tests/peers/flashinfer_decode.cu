#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/variants.cuh>

#include <kvbound/cuda/native/check.hpp>

#include "flashinfer.hpp"

namespace kvbound::sim {

void flashinfer_attention(const AttentionCall& call, cuda::Stream stream) {
  using Number = __nv_bfloat16;
  using Variant = flashinfer::DefaultAttention<false, false, false, false>;
  constexpr int64_t kHeadDim = kFlashInferHeadDim;
  const auto numbers = [](const cuda::Bfloat16* from) {
    return reinterpret_cast<Number*>(const_cast<cuda::Bfloat16*>(from));  // only the output is written
  };
  const flashinfer::SingleDecodeParams<Number, Number, Number> params(
      numbers(call.queries), numbers(call.keys), numbers(call.values), numbers(call.output), nullptr,
      static_cast<uint32_t>(call.tokens), static_cast<uint32_t>(call.query_heads),
      static_cast<uint32_t>(call.kv_heads), flashinfer::QKVLayout::kHND, kHeadDim, -1, 0,
      static_cast<float>(call.scale), 1, 1e4);
  cuda::native::check(
      flashinfer::SingleDecodeWithKVCacheDispatched<kHeadDim, flashinfer::PosEncodingMode::kNone, Variant>(
          params, static_cast<Number*>(call.workspace.data), stream),
      "FlashInfer's single decode");
}

}  // namespace kvbound::sim
