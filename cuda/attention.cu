// Attention over a cache: the entries of a layer are split over blocks (attention_splits.hpp), which attend
// to one split each; a second kernel joins their partial results.
#include "attention.hpp"

#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

using namespace attention_splits;

namespace {

constexpr int64_t kMostSegments = 65535;  // blocks along z

template <Storage T>
void require_valid(const DeviceTensor<const T>& queries, const CacheView<T>& cache) {
  require_layout("queries", queries);
  require_layout("keys", cache.keys);
  require_layout("values", cache.values);
  require_pages(cache);
  require_groups(queries.slices, cache.kv_heads());
  require_equal("columns of queries", queries.cols, "columns of keys", cache.keys.cols);
  require_equal("columns of keys", cache.keys.cols, "columns of values", cache.values.cols);
  require_range("head_dim", queries.cols, 1, kMostHeadDim);
  require_range("queries of a head", queries.rows, 1, INT32_MAX);
  require_range("queries of all heads", queries.slices * queries.rows, 0, INT32_MAX);
  const int64_t kv_heads = cache.kv_heads();
  constexpr int64_t kMostStride = kVector<T> * int64_t{UINT32_MAX};
  require_range("slice_stride of keys", cache.keys.slice_stride, 0, kMostStride);
  require_range("slice_stride of values", cache.values.slice_stride, 0, kMostStride);
  require_range("capacity", cache.capacity(), 0, INT32_MAX);
  require_range("segments", cache.segments, 1, std::clamp<int64_t>(kv_heads, 1, kMostSegments));
  require_equal("KV heads that segments do not share", kv_heads % cache.segments, "none", 0);
  require_range("entries of a segment's KV heads", kv_heads / cache.segments * cache.capacity(), 0,
                INT32_MAX - kTileTokens);
}

// The accumulation depth of a sum over at most so many entries, whatever the other KV heads have.
template <Storage T>
int64_t accumulation_depth(const Partition& partition, int64_t entries) {
  int64_t longest = 0;
  for (int64_t tokens = kTileTokens; tokens <= partition.most_split_tokens; tokens += kTileTokens) {
    const int64_t in_split = split_arithmetic<T>(std::min(entries, tokens), 1).accumulation_depth;
    // A KV head has no more than blocks_wanted splits of fewer than most_split_tokens tokens.
    const int64_t most = tokens < partition.most_split_tokens ? partition.blocks_wanted : entries;
    const int64_t splits = std::min(ceil_division(entries, tokens), most);
    const int64_t in_slice = ceil_division(splits, kJoinSlices);
    const int64_t joining = std::min<int64_t>(in_slice, kJoinPart) + ceil_division(in_slice, kJoinPart) + 4;
    longest = std::max(longest, in_split + (splits > 1 ? joining : 0));
  }
  return entries > 0 ? longest : 0;
}

// The partition for queries that take several blocks for each split: fewer and longer splits, so that there
// are about as many blocks as for a query of each head, unless a split would be longer than a block's shared
// memory holds. Its accumulation depths are at most those of the partition for a query of each head.
Partition partition_for(int64_t queries, int64_t kv_heads) {
  constexpr int64_t kBlockQueries = 16;  // at most, of both kernels
  Partition partition = kPartitions[0];
  if (kv_heads > 0) {
    const int64_t blocks = ceil_division(queries / kv_heads, kBlockQueries);
    partition.blocks_wanted =
        static_cast<uint32_t>(ceil_division(partition.blocks_wanted, std::max(blocks, int64_t{1})));
  }
  return partition;
}

int64_t workspace_bytes(const Partition& partition, int64_t queries, int64_t kv_heads, int64_t head_dim,
                        int64_t capacity, int64_t segments) {
  if (kv_heads == 0) return 0;
  const int64_t of_segment = most_splits(partition, kv_heads / segments, capacity);
  return Partials::bytes(queries / kv_heads, head_dim, segments * of_segment);
}

// Queues the attention of queries [query_heads, window, head_dim]. The attention to the entries that
// are not dominant repeats the splits that have a dominant entry, and joins them with the other
// splits' partial results.
template <Storage T>
void attend(const Partition& partition, DeviceTensor<const T> queries, const CacheView<T>& cache,
            double scale, const AttentionResult& result, const DominantEntries& dominants,
            Workspace workspace, Stream stream) {
  require_valid(queries, cache);
  const int64_t kv_heads = cache.kv_heads(), capacity = cache.capacity(),
                count = queries.slices * queries.rows;
  const int64_t segments = cache.segments, of_segment = kv_heads / segments;
  require_workspace(workspace, workspace_bytes(partition, count, kv_heads, queries.cols, capacity, segments));
  const Partials partials(workspace.data, count / kv_heads, queries.cols, of_segment,
                          most_splits(partition, of_segment, capacity), segments);
  SplitArguments<T> splits{.lengths = SplitLengths(partition),
                           .queries = queries,
                           .cache = cache,
                           .keys = CacheVectors(cache.keys),
                           .values = CacheVectors(cache.values),
                           .scale = static_cast<float>(scale),
                           .result = result,
                           .partials = partials,
                           .capacity = capacity,
                           .copies_tiles = partition.copies_tiles};
  JoinArguments join{.lengths = splits.lengths,
                     .entries = cache.entries,
                     .kv_heads = static_cast<int>(kv_heads),
                     .partials = partials,
                     .result = result,
                     .head_dim = queries.cols,
                     .capacity = capacity,
                     .dominants = dominants.rows,
                     .dominant_logits = dominants.logits};
  if (capacity > 0) attend_to_splits(splits, stream);
  join_splits(join, stream);
  if (!dominants.rows) return;
  splits.dominants = dominants.rows;
  splits.result.logits = nullptr;
  join.dominants = nullptr;
  join.result = {dominants.others_output, dominants.others_log_sum_exp};
  if (capacity > 0) attend_to_splits(splits, stream);
  join_splits(join, stream);
}

}  // namespace

namespace attention_splits {

int64_t attention_workspace_by(const Partition& partition, int64_t query_heads, int64_t kv_heads,
                               int64_t head_dim, int64_t capacity, int64_t segments) {
  return workspace_bytes(partition, query_heads, kv_heads, head_dim, capacity, segments);
}

template <Storage T>
void attention_by(const Partition& partition, DeviceTensor<const T> queries, const CacheView<T>& cache,
                  double scale, const AttentionResult& result, Workspace workspace, Stream stream) {
  require_equal("slices of queries", queries.slices, "queries of a head", 1);
  const DeviceTensor<const T> of_heads{queries.data, queries.rows,       1,
                                       queries.cols, queries.row_stride, queries.row_stride};
  attend(partition, of_heads, cache, scale, result, {}, workspace, stream);
}

template <Storage T>
KernelArithmetic attention_arithmetic_by(const Partition& partition, int64_t entries, int64_t head_dim) {
  KernelArithmetic arithmetic = split_arithmetic<T>(kTileTokens, head_dim);
  arithmetic.accumulation_depth = accumulation_depth<T>(partition, entries);
  arithmetic.rescalings = entries <= kTileTokens ? 0 : 1;
  return arithmetic;
}

template void attention_by(const Partition&, DeviceTensor<const Bfloat16>, const CacheView<Bfloat16>&, double,
                           const AttentionResult&, Workspace, Stream);
template KernelArithmetic attention_arithmetic_by<Bfloat16>(const Partition&, int64_t, int64_t);

}  // namespace attention_splits

int64_t attention_workspace(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t capacity,
                            int64_t segments) {
  return attention_workspace_by(kPartitions[0], query_heads, kv_heads, head_dim, capacity, segments);
}

template <Storage T>
void attention(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
               const AttentionResult& result, Workspace workspace, Stream stream) {
  attention_by(kPartitions[0], queries, cache, scale, result, workspace, stream);
}

int64_t causal_attention_workspace(int64_t query_heads, int64_t window, int64_t kv_heads, int64_t head_dim,
                                   int64_t capacity, int64_t segments) {
  const int64_t queries = query_heads * window;
  return workspace_bytes(partition_for(queries, kv_heads), queries, kv_heads, head_dim, capacity, segments);
}

template <Storage T>
void causal_attention(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
                      const AttentionResult& result, const DominantEntries& dominants, Workspace workspace,
                      Stream stream) {
  if (dominants.rows && cache.log_votes && !result.logits) {
    throw ShapeMismatch(
        "result.logits is null, but the dominant entries' logits of a cache with votes are taken from it");
  }
  const Partition partition = partition_for(queries.slices * queries.rows, cache.kv_heads());
  attend(partition, queries, cache, scale, result, dominants, workspace, stream);
}

template <Storage T>
KernelArithmetic attention_arithmetic(int64_t entries, int64_t head_dim) {
  return attention_arithmetic_by<T>(kPartitions[0], entries, head_dim);
}

template void attention(DeviceTensor<const float>, const CacheView<float>&, double, const AttentionResult&,
                        Workspace, Stream);
template void attention(DeviceTensor<const Float16>, const CacheView<Float16>&, double,
                        const AttentionResult&, Workspace, Stream);
template void attention(DeviceTensor<const Bfloat16>, const CacheView<Bfloat16>&, double,
                        const AttentionResult&, Workspace, Stream);

template void causal_attention(DeviceTensor<const float>, const CacheView<float>&, double,
                               const AttentionResult&, const DominantEntries&, Workspace, Stream);
template void causal_attention(DeviceTensor<const Float16>, const CacheView<Float16>&, double,
                               const AttentionResult&, const DominantEntries&, Workspace, Stream);
template void causal_attention(DeviceTensor<const Bfloat16>, const CacheView<Bfloat16>&, double,
                               const AttentionResult&, const DominantEntries&, Workspace, Stream);

template KernelArithmetic attention_arithmetic<float>(int64_t, int64_t);
template KernelArithmetic attention_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic attention_arithmetic<Bfloat16>(int64_t, int64_t);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
