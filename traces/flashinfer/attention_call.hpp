// What a recorded call of an attention kernel computed: for each request of its batch, causal attention of
// some queries over a cache. The wrappers' settings and page tables are arguments of an earlier call, plan.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

#include "../kv_cache.hpp"
#include "recorded_session.hpp"

namespace kvbound::traces {

/// Arguments of a call that its record may lack.
struct AttentionCallOptions {
  std::optional<int64_t> plan;  ///< the number of the call of plan; otherwise the last one on the same object
  std::optional<KvLayout> layout;  ///< if the constructor was not recorded and the shapes do not tell
  std::optional<double> sm_scale;  ///< if it was given to the deprecated forward(), which is not recorded
  bool causal = false;             ///< likewise
};

/// One request of a call's batch: its cache, of as many tokens as it has queries at least.
struct AttentionRequest : KvSequence {
  int64_t first_query = 0;  ///< row of the call's queries
  int64_t queries = 0;      ///< >= 1: the last positions of `tokens`
};

class AttentionCall {
 public:
  /// Checks everything but the numbers of queries, keys, values and outputs.
  ///
  /// number  of the call, from 1
  /// throws  TraceError, naming file, field, what was found and what was expected, for a call that did not
  ///         finish, another function, a kernel that computes something else than causal softmax attention
  ///         (positions encoded inside, capped logits, windows, masks, sinks, scaled or quantised caches),
  ///         and arguments that contradict each other; InvalidOption for a number that no call has, or
  ///         options that the call needs or contradicts; IoError
  AttentionCall(const RecordedSession& session, int64_t number, const AttentionCallOptions& options);

  const RecordedCall& call() const { return run_; }
  int64_t query_heads() const { return query_heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  std::optional<double> scale() const { return scale_; }  ///< none: 1 / sqrt(head_dim)
  Dtype query_dtype() const { return queries_->dtype; }
  Dtype key_dtype() const { return keys_->dtype; }
  Dtype value_dtype() const { return values_->dtype; }
  Dtype output_dtype() const { return output_->dtype; }

  int64_t requests() const { return requests_; }
  /// index: from 0. Throws TraceError for page tables that are out of range, queries that outnumber the
  /// tokens, or a sliding window that hides some of them.
  AttentionRequest request(int64_t index) const;

  /// [kv_heads, tokens, head_dim] and [query_heads, queries, head_dim]. Throw
  /// TraceError for NaN and infinity.
  Tensor keys(const AttentionRequest& request) const { return read_cache(request, *keys_, 0); }
  Tensor values(const AttentionRequest& request) const { return read_cache(request, *values_, 1); }
  Tensor queries(const AttentionRequest& request) const;
  /// [queries, query_heads * head_dim], as the kernel wrote it. Throws TraceError for NaN and
  /// infinity, unless allowed.
  Matrix outputs(const AttentionRequest& request,
                 NonFiniteNumbers non_finite = NonFiniteNumbers::refused) const;

  /// All files that were read.
  std::vector<std::string> paths() const;

 private:
  class Setup;

  Tensor read_cache(const AttentionRequest& request, const TensorEntry& entry, int64_t part) const;
  KvSequence paged_sequence(int64_t index) const;

  const RecordedCall& run_;
  const RecordedCall* plan_ = nullptr;         // null for functions that have none
  const RecordedCall* constructor_ = nullptr;  // null if it was not recorded
  std::unique_ptr<SafetensorsFile> inputs_, plan_inputs_, outputs_;
  const TensorEntry *queries_ = nullptr, *keys_ = nullptr, *values_ = nullptr, *output_ = nullptr;
  int64_t query_heads_ = 0, kv_heads_ = 0, head_dim_ = 0, requests_ = 0;
  int64_t page_size_ = 0, page_count_ = 0;  // of a paged cache; otherwise 0
  KvLayout layout_ = KvLayout::nhd;
  bool causal_ = false;
  int64_t window_ = std::numeric_limits<int64_t>::max();  // how many tokens before its own a query sees
  std::optional<double> scale_;
  std::vector<int64_t> query_offsets_, cache_offsets_;  // [requests + 1]: rows; of a paged cache, of pages_
  std::vector<int64_t> pages_, last_page_lengths_,
      lengths_;  // lengths_: empty if the plan does not have them
};

}  // namespace kvbound::traces
