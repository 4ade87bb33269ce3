// CriticalKV: keeps entries in two stages, first by attention, then by attention times projected value norm.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// Entries picked in two stages, as ascending indices.
struct TwoStageSelection {
  std::vector<int64_t> stage_one;
  std::vector<int64_t> selected;  ///< both stages
};

/// The input of CriticalKV: a layer's scored entries; the candidates are successive ones among them.
struct CriticalKvPrompt {
  const LayerView& layer;
  int64_t window = 0;  ///< last queries, over half of whose attention an adaptive stage one holds
  std::span<const int64_t> always_kept;  ///< ascending positions
  std::span<const int64_t> positions;    ///< [entries]: ascending
  int64_t first_candidate = 0;
  int64_t candidates = 0;
  MatrixView scores;       ///< A [kv_heads, entries]: attention score, reduced over the group
  MatrixView head_scores;  ///< A^h [query_heads, entries]: attention score per query head
  MatrixView norms;        ///< || v_j W^O_h || [query_heads, entries]: projected_value_norms
};

/// The result of CriticalKV.
struct CriticalKvSelection {
  Matrix stage_two_scores;               ///< [kv_heads, entries]
  std::vector<TwoStageSelection> heads;  ///< [kv_heads]: indices of candidates
};

/// CriticalKV's two stages, for every KV head of a prompt.
///
///     stage one  the stage_one_count(alpha, k) candidates of largest attention score A_j
///     stage two  the rest of k, by (A_j + epsilon) || v_j W^O ||, among the other candidates
///
/// k        [kv_heads], 0..candidates: number of candidates to select
/// times    adds up the wall times of stage_two_scores and of the selection; null: not measured
/// throws   ShapeMismatch, NonFinite
/// source   CriticalKV (arXiv:2502.03805), Algorithm 1
/// proof    proofs/critical_kv.md#ckv-3.5
CriticalKvSelection critical_kv(const CriticalKvPrompt& prompt, const TwoStage& options,
                                std::span<const int64_t> k, OperationTimes* times = nullptr);

/// The number of selected entries that stage one takes, out of k.
///
///     floor(alpha k), in exact decimal arithmetic;   alpha = adaptive: adaptive()
///
/// adaptive  returns adaptive_stage_one of the k candidates of largest attention score; called
///           only if alpha is adaptive
/// returns   0..k
/// source    CriticalKV, Algorithm 1; adaptive: ours
int64_t stage_one_count(const TwoStage& options, int64_t k, const std::function<int64_t()>& adaptive);

/// How strongly each cached value reaches the hidden state.
///
///     norms[i] = || values[i,:] * output_projection ||     in L1 or L2
///
/// values             [tokens, head_dim]     one KV head
/// output_projection  [head_dim, model_dim]  this query head's rows of W^O
/// returns            [tokens], >= 0, hidden-state units; empty for no tokens. The product is never
///                    stored whole; in L2 a norm may be off by a relative 2^-32, where the Gram matrix of
///                    W^O gives it (row_norms)
/// throws             ShapeMismatch if the inner dimensions differ; NonFinite if a norm is NaN or infinite
/// source             CriticalKV (arXiv:2502.03805), Theorem 3.3
/// proof              proofs/critical_kv.md#ckv-3.3
std::vector<double> projected_value_norms(MatrixView values, MatrixView output_projection, Norm norm);

/// The same for every query head of a layer, in parallel.
///
/// values             [kv_heads, tokens, head_dim]
/// output_projection  [query_heads * head_dim, model_dim]
/// returns            [query_heads, tokens]
Matrix projected_value_norms(const LayerShape& shape, TensorView values, MatrixView output_projection,
                             Norm norm);

/// The score by which stage two selects, for one KV head.
///
///     mean-of-products:  s_j = mean_h (a^h_j + epsilon) N^h_j
///     product-of-means:  s_j = (mean_h a^h_j + epsilon) mean_h N^h_j
///
/// head_scores  a [group_size, entries]: attention score per query head of the group
/// norms        N [group_size, entries]: projected value norms
/// returns      [entries], >= 0
/// throws       ShapeMismatch
/// source       CriticalKV, Algorithm 1; the bound holds for the mean of products over query heads
/// proof        proofs/critical_kv.md#ckv-window; the cost of epsilon: proofs/critical_kv.md#ckv-epsilon
std::vector<double> stage_two_scores(MatrixView head_scores, MatrixView norms, double epsilon,
                                     GqaProduct gqa);

/// Stage one takes the entries of largest attention score, stage two the largest stage-two scores among the
/// rest.
///
/// attention_score, stage_two_score  [entries]
/// k                0..entries: entries selected
/// stage_one_count  0..k
/// throws           ShapeMismatch, NonFinite
/// source           CriticalKV, Algorithm 1
/// proof            proofs/critical_kv.md#ckv-3.5
TwoStageSelection select_critical(VectorView attention_score, VectorView stage_two_score, int64_t k,
                                  int64_t stage_one_count);

/// The smallest stage one that holds over half of the attention (the theorem's
/// assumption) for every given query.
///
///     min { s : sum_{always kept} A_j + sum_{s best candidates} A_j > 1/2 for every row A },
///     k if no s <= k does
///
/// attention_weights  [rows, tokens]: a row per query and query head of the group
/// always_kept        positions
/// ranked             [k] positions, best first
/// returns            0..k
/// source             ours: a choice of alpha that meets CriticalKV's Assumption 3.4
/// proof              proofs/critical_kv.md#ckv-adaptive-alpha
int64_t adaptive_stage_one(MatrixView attention_weights, std::span<const int64_t> always_kept,
                           std::span<const int64_t> ranked);

/// The same for the window's queries over a whole prompt. Only a few rows of attention
/// weights are in memory at once.
int64_t adaptive_stage_one(const LayerView& layer, int64_t kv_head, int64_t window,
                           std::span<const int64_t> always_kept, std::span<const int64_t> ranked);

}  // namespace kvbound::reference
