// FlashInfer's decode attention and top-k.
#pragma once

#include "kernel_library.hpp"

namespace kvbound::sim {

inline constexpr int64_t kFlashInferHeadDim = 128;

/// What single_decode_with_kv_cache calls: on CUDA cores, and with use_tensor_cores.
void flashinfer_attention(const AttentionCall& call, cuda::Stream stream);
void flashinfer_attention_mma(const AttentionCall& call, cuda::Stream stream);

/// What top_k calls with deterministic: the scores, too, in any order; ties settled in any way.
void flashinfer_select_top(const TopCall& call, cuda::Stream stream);

}  // namespace kvbound::sim
