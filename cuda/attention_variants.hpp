// The ways to split attention's entries that its kernels are compiled with (primitives/tile_variants.hpp).
#pragma once

#include <cstdint>
#include <iterator>

#include "attention.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {

/// How entries are dealt to blocks. Constants, because results must not depend on the device.
struct Deal {
  int64_t blocks_wanted;
  int64_t most_split_tokens;
};
/// The first is `attention`'s: four blocks for each multiprocessor of an H200. The others are for BF16 caches with three or four
/// query heads to a KV head alone (primitives/tile_variants.hpp).
inline constexpr Deal kDeals[] = {{528, 512}, {264, 1024}, {396, 768}, {792, 384}, {1056, 256}};
inline constexpr int kDealCount = static_cast<int>(std::size(kDeals));

/// attention, attention_workspace and attention_arithmetic with any of the deals.
void attention_by(int deal, DeviceTensor<const Bfloat16> queries, const CacheView<Bfloat16>& cache,
                  double scale, const AttentionResult& result, Workspace workspace, Stream stream);
int64_t attention_workspace_by(int deal, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                               int64_t capacity);
KernelArithmetic attention_arithmetic_by(int deal, int64_t entries, int64_t head_dim);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
