// The entries that are kept at the prompt's end, selected on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

#include "ranking.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The kept entries of each KV head.
struct KeptEntries {
  /// budgets   [kv_heads]
  /// capacity  of the cache that the entries will fill
  KeptEntries(std::span<const int64_t> budgets, int64_t capacity, Stream stream);

  std::vector<int64_t> budgets;  ///< [kv_heads]
  Buffer<int64_t> counts;        ///< [kv_heads]: the same in device memory
  IndexLists positions;          ///< [kv_heads, capacity], ascending
};

/// Selects the entries of a ranked prompt: reference::select_prompt.
///
/// kept    its budgets are read and its positions written
/// record  when the queue finishes: what is recorded of the selection, all but `merges`;
///         NonFinite is thrown then
template <Storage T>
void select_prompt(const Policy& policy, const Ranking& ranking, LayerScores<T>& known, Queue& queue,
                   KeptEntries& kept, PromptRecord& record);

/// What a host that ranks nothing keeps: reference::sinks_and_newest, reference::sinks_drawn_and_newest. The
/// record is complete at once.
///
/// layer  the layer's number in its trace or model
void keep_unranked(const Host& host, int64_t prompt_tokens, int64_t layer, KeptEntries& kept,
                   PromptRecord& record, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
