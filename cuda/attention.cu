// Decode attention: the entries of a layer are split over blocks (attention_splits.hpp), which attend to one split each; a
// second kernel joins their partial results.
#include "attention.hpp"

#include <algorithm>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

using namespace attention_splits;

namespace {

template <Storage T>
void require_valid(const DeviceTensor<const T>& queries, const CacheView<T>& cache) {
  require_layout("queries", queries);
  require_layout("keys", cache.keys);
  require_layout("values", cache.values);
  require_equal("slices of queries", queries.slices, "queries of a head", 1);
  require_groups(queries.rows, cache.keys.slices);
  require_equal("KV heads of keys", cache.keys.slices, "KV heads of values", cache.values.slices);
  require_equal("capacity of keys", cache.keys.rows, "capacity of values", cache.values.rows);
  require_equal("columns of queries", queries.cols, "columns of keys", cache.keys.cols);
  require_equal("columns of keys", cache.keys.cols, "columns of values", cache.values.cols);
  require_range("head_dim", queries.cols, 1, kMostHeadDim);
}

// The accumulation depth of a sum over at most so many entries, whatever the other KV heads have.
template <Storage T>
int64_t accumulation_depth(const Deal& deal, int64_t entries) {
  int64_t longest = 0;
  for (int64_t tokens = kTileTokens; tokens <= deal.most_split_tokens; tokens += kTileTokens) {
    const int64_t in_split = split_arithmetic<T>(std::min(entries, tokens), 1).accumulation_depth;
    // A KV head has no more than blocks_wanted splits of fewer than most_split_tokens tokens.
    const int64_t splits = std::min(ceil_division(entries, tokens),
                                    tokens < deal.most_split_tokens ? deal.blocks_wanted : entries);
    const int64_t in_slice = ceil_division(splits, kJoinSlices);
    const int64_t joining = std::min<int64_t>(in_slice, kJoinPart) + ceil_division(in_slice, kJoinPart) + 4;
    longest = std::max(longest, in_split + (splits > 1 ? joining : 0));
  }
  return entries > 0 ? longest : 0;
}

}  // namespace

namespace attention_splits {

int64_t attention_workspace_by(const Deal& deal, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                               int64_t capacity) {
  if (kv_heads == 0) return 0;
  return Partials::bytes(query_heads / kv_heads, head_dim, most_splits(deal, kv_heads, capacity));
}

template <Storage T>
void attention_by(const Deal& deal, DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
                  const AttentionResult& result, Workspace workspace, Stream stream) {
  require_valid(queries, cache);
  const int64_t kv_heads = cache.keys.slices, capacity = cache.keys.rows;
  require_workspace(workspace, attention_workspace_by(deal, queries.rows, kv_heads, queries.cols, capacity));
  const Partials partials(workspace.data, queries.rows / kv_heads, queries.cols,
                          most_splits(deal, kv_heads, capacity));
  if (capacity > 0) {
    attend_to_splits(SplitArguments<T>{deal, queries, cache, static_cast<float>(scale), result, partials},
                     stream);
  }
  join_splits({deal, cache.entries, kv_heads, partials, result, queries.cols}, stream);
}

template <Storage T>
KernelArithmetic attention_arithmetic_by(const Deal& deal, int64_t entries, int64_t head_dim) {
  KernelArithmetic arithmetic = split_arithmetic<T>(kTileTokens, head_dim);
  arithmetic.accumulation_depth = accumulation_depth<T>(deal, entries);
  arithmetic.rescalings = entries <= kTileTokens ? 0 : 1;
  return arithmetic;
}

template void attention_by(const Deal&, DeviceTensor<const Bfloat16>, const CacheView<Bfloat16>&, double,
                           const AttentionResult&, Workspace, Stream);
template KernelArithmetic attention_arithmetic_by<Bfloat16>(const Deal&, int64_t, int64_t);

}  // namespace attention_splits

int64_t attention_workspace(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t capacity) {
  return attention_workspace_by(kDeals[0], query_heads, kv_heads, head_dim, capacity);
}

template <Storage T>
void attention(DeviceTensor<const T> queries, const CacheView<T>& cache, double scale,
               const AttentionResult& result, Workspace workspace, Stream stream) {
  attention_by(kDeals[0], queries, cache, scale, result, workspace, stream);
}

template <Storage T>
KernelArithmetic attention_arithmetic(int64_t entries, int64_t head_dim) {
  return attention_arithmetic_by<T>(kDeals[0], entries, head_dim);
}

template void attention(DeviceTensor<const float>, const CacheView<float>&, double, const AttentionResult&,
                        Workspace, Stream);
template void attention(DeviceTensor<const Float16>, const CacheView<Float16>&, double,
                        const AttentionResult&, Workspace, Stream);
template void attention(DeviceTensor<const Bfloat16>, const CacheView<Bfloat16>&, double,
                        const AttentionResult&, Workspace, Stream);

template KernelArithmetic attention_arithmetic<float>(int64_t, int64_t);
template KernelArithmetic attention_arithmetic<Float16>(int64_t, int64_t);
template KernelArithmetic attention_arithmetic<Bfloat16>(int64_t, int64_t);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
