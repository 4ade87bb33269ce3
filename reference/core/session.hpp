// The interface of a compressed cache: sim/ drives it, backends (reference/, cuda/) implement it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dtype.hpp"
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
  /// The rows of KV head g's query heads, from a matrix with one row per query head;
  /// empty if the matrix is empty.
  MatrixView group_rows(MatrixView rows, int64_t g) const {
    return rows.rows > 0 ? rows.middle_rows(g * group_size(), group_size()) : MatrixView();
  }
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

/// The bits of numbers that were recorded in 16 bits each, at the places of their doubles: the bits of the
/// number keys.data[i] are keys[i]. Null: only the doubles are known.
struct RecordedBits {
  Dtype dtype = Dtype::f64;
  const uint16_t* keys = nullptr;
  const uint16_t* values = nullptr;
  const uint16_t* queries = nullptr;
  const uint16_t* output_projection = nullptr;  ///< of LayerView alone
};

/// One layer's cache after a prompt of n tokens. The viewed memory must outlive the
/// session that is given the view.
struct LayerView {
  LayerShape shape;
  double scale = 1;    ///< logits are scale * query . key
  TensorView keys;     ///< [kv_heads, n, head_dim], after RoPE
  TensorView values;   ///< [kv_heads, n, head_dim]
  TensorView queries;  ///< [query_heads, window_queries, head_dim]: the last prompt queries
  /// [query_heads * head_dim, model_dim]: W^O; rows h * head_dim ..
  /// (h + 1) * head_dim - 1 belong to query head h.
  MatrixView output_projection;
  int64_t index = 0;       ///< the layer's number in its trace or model; seeds draws only
  RecordedBits bits = {};  ///< for backends that store numbers so; who replaces a view drops them

  int64_t prompt_tokens() const { return keys.rows; }
  int64_t window_queries() const { return queries.rows; }
  MatrixView head_projection(int64_t query_head) const {
    return output_projection.middle_rows(query_head * shape.head_dim, shape.head_dim);
  }
};

/// The inputs of one decode step.
struct StepView {
  MatrixView keys;         ///< [kv_heads, head_dim]
  MatrixView values;       ///< [kv_heads, head_dim]
  MatrixView queries;      ///< [query_heads, head_dim]
  RecordedBits bits = {};  ///< as in LayerView
};

/// The entries of one KV head that were merged into one. With CaM, the evicted
/// value was spread over several entries, of which `into` is the first.
struct MergeCluster {
  int64_t into = 0;           ///< position of the merged entry
  std::vector<int64_t> from;  ///< ascending positions of the evicted members
  /// [group_size, 1 + from]: the predicted scores that weighted the members, natural log, `into` first; empty
  /// for methods that predict no scores.
  Matrix log_scores;
};

/// Counts of merge outcomes.
struct MergeCounts {
  int64_t leaving = 0;   ///< evicted entries
  int64_t merged = 0;    ///< evicted entries that found a target
  int64_t clusters = 0;  ///< clusters that became one entry each
  int64_t singular = 0;  ///< clusters for which ZIP has no scale
  int64_t negative = 0;  ///< clusters for which ZIP's scale is negative
  int64_t far = 0;       ///< clusters for which ZIP's scale differs from 1 by more than 1/2

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

/// Values of `evicted`, `merged_into` and `target_of` that are no positions.
inline constexpr int64_t kNotEvicted = -1;      ///< no entry was evicted
inline constexpr int64_t kNotMerged = -1;       ///< the evicted entry was dropped without a merge
inline constexpr int64_t kNothingEvicted = -2;  ///< no entry was evicted, so none could merge

/// The result of one merge (after the prompt, in a decode step or in a rebuild) in one KV head's cache.
struct HeadMerge {
  std::vector<MergeCluster> clusters;
  MergeCounts counts;
  /// Ascending: after the prompt or a rebuild all entries, else the entries that changed.
  std::vector<int64_t> positions;
  std::vector<double> votes;  ///< [positions]
  Matrix keys;                ///< [positions, head_dim]
  Matrix values;              ///< [positions, head_dim]
  /// [tokens]: after the prompt or a rebuild, for methods that form clusters, the position whose cluster
  /// each entry so far belongs to: its own for kept entries, kNotMerged for entries without a target.
  /// With order=merge-first it is the root's, also where the selection drops the root, and with it the
  /// cluster. Otherwise empty.
  std::vector<int64_t> target_of = {};
};

/// The decisions of compressing the prompt, and the scores on which they are based.
struct PromptRecord {
  std::vector<std::vector<int64_t>> kept;  ///< per KV head, ascending positions
  /// Two-stage selections: per KV head, ascending positions of stage one and of the
  /// always-kept entries; else empty.
  std::vector<std::vector<int64_t>> stage_one;
  std::vector<int64_t> score_positions;         ///< [m]: the positions that were scored
  Matrix score;                                 ///< [kv_heads, m]: after the group reduction
  std::optional<Matrix> stage_two_score;        ///< [kv_heads, m]
  std::optional<Matrix> projected_value_norms;  ///< [query_heads, n], in the selection's norm
  std::vector<HeadMerge> merges;                ///< [kv_heads] for policies that merge; else empty
};

/// The result of one decode step.
struct StepRecord {
  Matrix output;  ///< [query_heads, head_dim]: compressed attention output before W^O
  /// [kv_heads]: the evicted position, -1 for none; empty for hosts that do not evict during decoding.
  std::vector<int64_t> evicted = {};
  /// [kv_heads]: the position that the evicted entry merged into, -1 if it was dropped, -2 if no entry was
  /// evicted; empty for policies that do not merge and where `evicted` is empty.
  std::vector<int64_t> merged_into = {};
  /// [kv_heads] for policies that merge, in steps in which a merge was possible; else empty.
  std::vector<HeadMerge> merges = {};
  /// The cache was rebuilt before the queries attended; `merges` then holds the whole cache.
  bool rebuilt = false;
  /// After a rebuild by a two-stage selection, as in PromptRecord: stage one and the always-kept entries,
  /// which include the step's own entry if it is always kept.
  std::vector<std::vector<int64_t>> stage_one = {};
};

struct SessionSteps;

/// One layer's compressed cache.
///
/// A session belongs to one layer. `compress` starts over: it may be called again with another policy and
/// other budgets; intermediate results that depend on the layer alone are then reused.
struct Session {
  virtual ~Session() = default;

  /// Compresses the prompt. budgets [kv_heads]: number of entries kept, always-kept entries included.
  /// Throws ShapeMismatch, InvalidPolicy.
  virtual PromptRecord compress(const LayerView& layer, const Policy& policy,
                                std::span<const int64_t> budgets) = 0;

  /// One decode step: the new entry is appended, the queries attend, and one entry is evicted if the cache is
  /// over budget. Requires a compressed prompt. Throws ShapeMismatch, NonFinite.
  virtual StepRecord step(const StepView& view) = 0;

  /// Successive decode steps whose inputs are all known, as in a replay: a backend may take them without
  /// waiting for one before the next. Throws what a step throws; the session must then be compressed anew,
  /// and one of a device takes no step before.
  virtual std::vector<StepRecord> steps(std::span<const StepView> views) {
    std::vector<StepRecord> records;
    for (const StepView& view : views) records.push_back(step(view));
    return records;
  }

  /// The decode steps of several sessions of this kind, itself among them: of layers, which in a replay do
  /// not depend on each other, or of requests. A backend may take them together; records are the same, bit by
  /// bit. The sessions then go on together, the same in the same order, or are compressed anew.
  ///
  /// throws  what `steps` of the first session that fails throws; at the first steps since all were
  ///         compressed, the sessions before that one have their records. All must then be compressed anew
  virtual void take_together(std::span<SessionSteps> all);
};

/// A session's decode steps.
struct SessionSteps {
  Session* session;
  std::vector<StepView> views = {};
  std::vector<StepRecord> records = {};
};

inline void Session::take_together(std::span<SessionSteps> all) {
  for (SessionSteps& each : all) each.records.clear();
  for (SessionSteps& each : all) each.records = each.session->steps(each.views);
}

}  // namespace kvbound
