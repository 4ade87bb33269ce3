// The seam between those who drive a compressed cache (sim/) and those who implement one (backends).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy.hpp"
#include "view.hpp"

namespace kvbound {

struct LayerShape {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;  ///< divides query_heads; query head h reads KV head h / group_size()
  int64_t head_dim = 0;
  int64_t model_dim = 0;

  int64_t group_size() const { return query_heads / kv_heads; }
  int64_t kv_head_of(int64_t query_head) const { return query_head / group_size(); }
  /// The rows of KV head g's query heads, of one row per query head; nothing of nothing.
  MatrixView group_rows(MatrixView rows, int64_t g) const {
    return rows.rows > 0 ? rows.middle_rows(g * group_size(), group_size()) : MatrixView();
  }
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

/// One layer after its prompt of n tokens. The numbers outlive the session that they are given to.
struct LayerView {
  LayerShape shape;
  double scale = 1;    ///< logits are scale * query . key
  TensorView keys;     ///< [kv_heads, n, head_dim], after RoPE
  TensorView values;   ///< [kv_heads, n, head_dim]
  TensorView queries;  ///< [query_heads, window_queries, head_dim]: the last prompt queries
  MatrixView
      output_projection;  ///< [query_heads * head_dim, model_dim]: W^O, block h belongs to query head h

  int64_t prompt_tokens() const { return keys.rows; }
  int64_t window_queries() const { return queries.rows; }
  MatrixView head_projection(int64_t query_head) const {
    return output_projection.middle_rows(query_head * shape.head_dim, shape.head_dim);
  }
};

/// What one decode step brings.
struct StepView {
  MatrixView keys;     ///< [kv_heads, head_dim]
  MatrixView values;   ///< [kv_heads, head_dim]
  MatrixView queries;  ///< [query_heads, head_dim]
};

/// Entries of one KV head that became one; with CaM, whose values were spread over entries of which `into` is the first.
struct MergeCluster {
  int64_t into = 0;           ///< the position that the merged entry has
  std::vector<int64_t> from;  ///< ascending positions of the evicted members
  /// [group_size, 1 + from]: the predicted scores by which they merged, natural log, `into` first; empty: methods without.
  Matrix log_scores;
};

/// How merging went.
struct MergeCounts {
  int64_t leaving = 0;   ///< entries that were evicted
  int64_t merged = 0;    ///< of those, how many found a target
  int64_t clusters = 0;  ///< clusters that became one entry each
  int64_t singular = 0;  ///< of those, where ZIP has no scale
  int64_t negative = 0;  ///< where its scale is negative
  int64_t far = 0;       ///< where its scale is farther than 1/2 from 1

  MergeCounts& operator+=(const MergeCounts& other) {
    leaving += other.leaving;
    merged += other.merged;
    clusters += other.clusters;
    singular += other.singular;
    negative += other.negative;
    far += other.far;
    return *this;
  }
};

/// What merging did to one KV head's cache at one time.
struct HeadMerge {
  std::vector<MergeCluster> clusters;
  MergeCounts counts;
  /// Ascending: all entries after the prompt or a rebuild, else those that changed.
  std::vector<int64_t> positions;
  std::vector<double> votes;  ///< [positions]
  Matrix keys;                ///< [positions, head_dim]
  Matrix values;              ///< [positions, head_dim]
};

/// What compressing the prompt decided, and on what grounds.
struct PromptRecord {
  std::vector<std::vector<int64_t>> kept;  ///< per KV head, ascending positions
  /// Two-stage selections: per KV head, ascending positions of stage one and of those always kept; else empty.
  std::vector<std::vector<int64_t>> stage_one;
  std::vector<int64_t> score_positions;         ///< [m]: the positions that were scored
  Matrix score;                                 ///< [kv_heads, m]: after the group reduction
  std::optional<Matrix> stage_two_score;        ///< [kv_heads, m]
  std::optional<Matrix> projected_value_norms;  ///< [query_heads, n], in the selection's norm
  std::vector<HeadMerge> merges;                ///< [kv_heads], of policies that merge; else empty
};

/// What a step's record says instead of a position.
inline constexpr int64_t kNotEvicted = -1;      ///< no entry was evicted
inline constexpr int64_t kNotMerged = -1;       ///< the evicted entry merged with none
inline constexpr int64_t kNothingEvicted = -2;  ///< no entry was evicted that could merge

/// What one decode step gave.
struct StepRecord {
  Matrix output;  ///< [query_heads, head_dim]: compressed attention output before W^O
  /// [kv_heads]: the position that was evicted, -1 for none; empty: hosts that evict nothing while decoding
  std::vector<int64_t> evicted = {};
  /// [kv_heads]: the position that the evicted entry merged into, -1 dropped, -2 nothing evicted; empty without merging or
  /// `evicted`.
  std::vector<int64_t> merged_into = {};
  std::vector<HeadMerge> merges =
      {};                ///< [kv_heads], of policies that merge where anything may have merged; else empty
  bool rebuilt = false;  ///< the cache was rebuilt before the queries attended: `merges` has all of it
  /// Of a rebuild by a two-stage selection, as PromptRecord's: stage one and those always kept, the step's own entry if it is.
  std::vector<std::vector<int64_t>> stage_one = {};
};

/// One layer's compressed cache.
///
/// A session belongs to one layer. `compress` starts over: it may be called again with another policy and
/// other budgets, and what depends on the layer alone is then not computed twice.
struct Session {
  virtual ~Session() = default;

  /// Compresses the prompt. budgets [kv_heads]: entries kept, those that the host always keeps included.
  /// Throws ShapeMismatch, InvalidPolicy.
  virtual PromptRecord compress(const LayerView& layer, const Policy& policy,
                                std::span<const int64_t> budgets) = 0;

  /// One decode step: the new entry enters, the queries attend, and an entry is evicted if there is one too many.
  /// After compress. Throws ShapeMismatch, NonFinite.
  virtual StepRecord step(const StepView& view) = 0;
};

}  // namespace kvbound
