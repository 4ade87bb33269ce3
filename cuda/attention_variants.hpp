// The ways to distribute attention's entries to blocks, to be compared on a GPU
// (primitives/tile_variants.hpp).
#pragma once

#include <cstdint>
#include <iterator>

#include "attention.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {

/// How entries are distributed to blocks: constants, because results must not depend on the device. And how
/// the blocks' tiles come to shared memory, on which results do not depend.
struct Partition {
  uint32_t blocks_wanted;
  uint32_t most_split_tokens;  ///< whole tiles
  bool copies_tiles = false;   ///< by the block's threads, also where TMA could
};
/// The first is `attention`'s: four blocks for each multiprocessor of an H200.
inline constexpr Partition kPartitions[] = {{528, 512}, {528, 512, true}, {264, 1024},
                                            {396, 768}, {792, 384},       {1056, 256}};

/// attention, attention_workspace and attention_arithmetic with any partition; compiled for
/// the type of the comparison.
template <Storage T>
void attention_by(const Partition& partition, DeviceTensor<const T> queries, const CacheView<T>& cache,
                  double scale, const AttentionResult& result, Workspace workspace, Stream stream);
int64_t attention_workspace_by(const Partition& partition, int64_t query_heads, int64_t kv_heads,
                               int64_t head_dim, int64_t capacity, int64_t segments = 1);
template <Storage T>
KernelArithmetic attention_arithmetic_by(const Partition& partition, int64_t entries, int64_t head_dim);

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
