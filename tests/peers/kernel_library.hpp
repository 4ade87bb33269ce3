// Another library's kernels for operations of `kvbound bench`, as peer_command.cpp judges and times them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/storage.hpp>

namespace kvbound::sim {

/// One query of every query head over a cache whose KV heads have as many tokens each; device memory.
struct AttentionCall {
  const cuda::Bfloat16* queries;  ///< [query_heads, head_dim]
  const cuda::Bfloat16* keys;     ///< [kv_heads, tokens, head_dim]
  const cuda::Bfloat16* values;   ///< [kv_heads, tokens, head_dim]
  cuda::Bfloat16* output;         ///< [query_heads, head_dim]
  int64_t query_heads, kv_heads, tokens, head_dim;
  double scale;               ///< of query . key
  cuda::Workspace workspace;  ///< zeros before the first call, and then what the call before left there
};

/// The k largest scores of every row; device memory.
struct TopCall {
  const float* scores;       ///< [rows, cols]
  const int32_t* positions;  ///< [rows, cols]: 0, 1, 2, ... in every row, for sorts that take them along
  float* values;             ///< [rows, cols]: room for the scores selected
  int32_t* indices;          ///< [rows, cols]: room for their positions
  int64_t rows, cols, k;
  cuda::Workspace workspace;  ///< as AttentionCall's
};

/// A library of kernels; null for an operation that it does not have. Calls throw DeviceError.
struct KernelLibrary {
  std::string_view name;  ///< "flashinfer"
  std::string version;
  /// Of its attention, as `kvbound check` takes them: the types that attention weights, and outputs of parts
  /// of the cache, are rounded to.
  std::string_view weights, partials;
  int64_t head_dim = 0;  ///< the only one that its attention is compiled for; 0: any

  void (*attention)(const AttentionCall& call, cuda::Stream stream) = nullptr;
  /// Writes indices [rows, k], in any order.
  void (*select_top)(const TopCall& call, cuda::Stream stream) = nullptr;
  /// Writes indices [rows, cols], of which the first k in a row are those of the largest scores, best first.
  void (*rank_top)(const TopCall& call, cuda::Stream stream) = nullptr;
};

/// Those of this program.
std::span<const KernelLibrary> kernel_libraries();

}  // namespace kvbound::sim
