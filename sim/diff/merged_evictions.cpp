#include "merged_evictions.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>

#include "near_tie.hpp"

namespace kvbound::sim {
namespace {

bool are_zero(const Matrix& errors) {
  return std::ranges::all_of(errors.numbers(), [](double error) { return error == 0; });
}

}  // namespace

MergedEvictions::MergedEvictions(const traces::Layer& layer, const TestedImplementation& implementation,
                                 const HostRules& rules, int64_t kv_head)
    : layer_(layer),
      implementation_(implementation),
      policy_(implementation.policy),
      arithmetic_(implementation.arithmetic.attention),
      rules_(rules),
      score_(rules_of(policy_.score)),
      g_(kv_head),
      group_size_(layer.shape.group_size()) {
  if (score_.change && rules_.ranks()) {
    spaces_ = reference::change_spaces(score_.space, projection(), group_size_);
  }
}

void MergedEvictions::begin(MatrixView head_errors, const reference::HeadCache& cache,
                            const MergedErrors& errors) {
  std::vector<int64_t> all(cache.entries());
  std::iota(all.begin(), all.end(), 0);
  set_norm_errors(all, cache, errors);
  running_errors_.emplace(head_errors, group_size_, layer_.keys.view().rows, arithmetic_);
}

void MergedEvictions::revalue(int64_t entry, const reference::HeadCache& cache, const MergedErrors& errors) {
  set_norm_errors({entry}, cache, errors);
}

void MergedEvictions::observe(MatrixView queries, const reference::HeadStepper& stepper,
                              const CacheRowErrors& rows, const reference::AttentionErrors& attention) {
  const reference::HeadCache& cache = stepper.cache();
  if (rules_.ranks()) {
    running_errors_->update(rules_, stepper.eviction(), cache.positions,
                            contribution_errors(queries, cache, rows, attention));
  }
  if (!rules_of(policy_.selection).in_decoding) return;
  weights_.weights =
      reference::attention(queries, cache.keys, cache.values, layer_.scale, cache.votes).weights;
  weights_.errors = attention.weights;
}

// Error bounds of a step's contributions to the scores, [group_size, entries]; infinite where there are none.
Matrix MergedEvictions::contribution_errors(MatrixView queries, const reference::HeadCache& cache,
                                            const CacheRowErrors& rows,
                                            const reference::AttentionErrors& attention) const {
  if (!score_.change) return attention.weights;
  if (are_zero(rows.keys) && are_zero(rows.values)) {
    return reference::change_score_errors(
        *score_.change, queries, cache.keys, cache.values, reference::MeasuredValues(cache.values, spaces_),
        spaces_, layer_.scale, implementation_.arithmetic.change_scores, cache.votes);
  }
  Matrix unbounded(group_size_, cache.entries());
  for (int64_t h = 0; h < group_size_; ++h) std::ranges::fill(unbounded.row(h), kInfinity);
  return unbounded;
}

Choice MergedEvictions::judge(const EvictionPlace& place, const std::optional<int64_t>& claimed,
                              bool certain) const {
  const int64_t own = place.own();
  if (!claimed) return unjudged_choice(own);
  if (*claimed == own) return same_choice(own);
  if (const std::optional<Choice> unscored = judge_unscored(place, *claimed)) return *unscored;
  return certain ? judge_by_scores(place, *claimed) : undecided_choice(*claimed);
}

Choice MergedEvictions::judge_by_scores(const EvictionPlace& place, int64_t claimed) const {
  const EvictionCandidates candidates = place.candidates();
  const BoundedScores scores = running_errors_->reduced(place.stepper.eviction(), candidates, score_.group);
  if (std::ranges::any_of(scores.errors, [](double error) { return !(error < kInfinity); })) {
    return undecided_choice(claimed);
  }
  const std::vector<int64_t> kept = candidates.without(claimed);
  const SelectionRules selection = rules_of(policy_.selection);
  if (!selection.in_decoding)
    return judge_scored(place, claimed, candidates, top_k_fault(scores.view(), kept));
  const Matrix score_errors = running_errors_->at(candidates.positions),
               norm_errors = reference::columns_of(norm_errors_, candidates.positions);
  const CriticalEviction critical{*selection.two_stage, place,       candidates,  scores,
                                  score_errors,         norm_errors, arithmetic_, [&] { return weights_; }};
  return judge_scored(place, claimed, candidates, critical.fault(kept));
}

// Bounds the errors of the projected norms of the cache's values at these indices: those of computing the norms, and those of
// the values.
void MergedEvictions::set_norm_errors(const std::vector<int64_t>& entries, const reference::HeadCache& cache,
                                      const MergedErrors& all_errors) {
  const SelectionRules selection = rules_of(policy_.selection);
  if (!selection.in_decoding) return;
  const LayerShape& shape = layer_.shape;
  const auto count = std::ssize(entries);
  const Matrix values = reference::rows_of(cache.values, entries);
  const TensorView tensor{values.data(), 1, count, shape.head_dim, count * shape.head_dim};
  const MatrixView projection = this->projection();
  const LayerShape group{group_size_, 1, shape.head_dim, shape.model_dim};
  const Norm norm = selection.two_stage->norm;
  const Matrix norms = reference::projected_value_norms(group, tensor, projection, norm);
  Matrix value_errors(count, shape.head_dim);
  for (int64_t j = 0; j < count; ++j) {
    std::ranges::copy(all_errors.entry(cache.positions[entries[j]]).value, value_errors.row(j).begin());
  }
  const TensorView moved{value_errors.data(), 1, count, shape.head_dim, count * shape.head_dim};
  const Matrix errors = reference::projected_value_norm_errors(group, tensor, projection, norm, norms,
                                                               implementation_.arithmetic.norms(norm), moved);
  if (norm_errors_.rows() == 0) norm_errors_ = Matrix(group_size_, layer_.keys.view().rows);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t h = 0; h < group_size_; ++h) norm_errors_(h, cache.positions[entries[j]]) = errors(h, j);
  }
}

MatrixView MergedEvictions::projection() const {
  const int64_t rows = group_size_ * layer_.shape.head_dim;
  return layer_.output_projection.view().middle_rows(g_ * rows, rows);
}

}  // namespace kvbound::sim
