#include "head_eviction.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/group_reduction.hpp>

namespace kvbound::reference {
namespace {

void copy_row(VectorView from, std::span<double> to) { std::ranges::copy(from, to.begin()); }

// The prompt's columns at the given positions, in a matrix with `room` columns.
Matrix entry_columns(MatrixView prompt, const std::vector<int64_t>& positions, int64_t room) {
  Matrix columns(prompt.rows, room);
  for (int64_t h = 0; h < prompt.rows; ++h) {
    for (size_t j = 0; j < positions.size(); ++j) columns(h, j) = prompt(h, positions[j]);
  }
  return columns;
}

}  // namespace

HeadEviction::HeadEviction(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget,
                           MatrixView head_scores, MatrixView norms, const HeadCache& cache)
    : rules_(rules_of(policy.host, layer.prompt_tokens(), budget)),
      score_(rules_of(policy.score)),
      kv_head_(kv_head),
      budget_(budget),
      scale_(layer.scale),
      group_size_(layer.shape.group_size()),
      entries_(cache.entries()) {
  if (!is_scored()) return;
  const int64_t head_dim = layer.shape.head_dim, group_dim = group_size_ * head_dim;
  const MatrixView output_projection = layer.output_projection.middle_rows(kv_head * group_dim, group_dim);
  if (const SelectionRules selection = rules_of(policy.selection); selection.in_decoding) {
    stages_ = selection.two_stage;
    for (int64_t h = 0; h < group_size_; ++h) {
      factors_.emplace_back(output_projection.middle_rows(h * head_dim, head_dim), stages_->norm);
    }
  }
  const int64_t room =
      std::max(entries_, budget_) + 1;  // a teacher-forced cache may hold fewer than its budget
  scores_ = entry_columns(head_scores, cache.positions, room);
  if (norms.rows > 0) {
    norms_ = Matrix(group_size_, room);
    for (int64_t h = 0; h < group_size_; ++h) copy_row(norms.row(h), norms_.row(h));
  }
  if (!score_.change) return;
  spaces_ = value_spaces(score_.space, output_projection, group_size_);
  const Matrix cached_norms = squared_norms(cache.values, spaces_);
  squared_norms_ = Matrix(group_size_, room);
  for (int64_t h = 0; h < group_size_; ++h) copy_row(cached_norms.row(h), squared_norms_.row(h));
}

void HeadEviction::enter(const HeadCache& cache) {
  const int64_t entry = entries_++;
  if (!is_scored()) return;
  for (int64_t h = 0; h < group_size_; ++h) scores_(h, entry) = 0;
  revalue(entry, cache);
}

void HeadEviction::revalue(int64_t entry, const HeadCache& cache) {
  if (!is_scored()) return;
  const MatrixView value = cache.values.view().middle_rows(entry, 1);
  for (int64_t h = 0; h < group_size_; ++h) {
    if (!spaces_.empty()) {
      squared_norms_(h, entry) = spaces_[h].squared_norms(value).front();
    }
    if (stages_) {
      norms_(h, entry) = factors_[h].row_norms(value).front();
      require_finite("projected_value_norms", norms_.row(h).subspan(entry, 1));
    }
  }
}

Matrix HeadEviction::attend(MatrixView queries, const HeadCache& cache) {
  if (score_.change && is_scored()) {
    const ScoredCache scored{cache.keys, cache.values, of_entries(squared_norms_), spaces_, cache.votes};
    ScoredAttention attention = scored_attention(*score_.change, queries, scored, scale_);
    update(attention.scores);
    return std::move(attention.output);
  }
  AttentionOutput attention = reference::attention(queries, cache.keys, cache.values, scale_, cache.votes);
  if (is_scored()) update(attention.weights);
  weights_ = std::move(attention.weights);
  return std::move(attention.output);
}

void HeadEviction::update(MatrixView contributions) {
  for (int64_t h = 0; h < group_size_; ++h) {
    const std::span<double> scores = scores_.row(h);
    const VectorView row = contributions.row(h);
    switch (rules_.step_update) {
      case StepUpdate::none:
        break;
      case StepUpdate::accumulate:
        std::ranges::transform(scores.first(row.size()), row, scores.begin(), std::plus());
        break;
      case StepUpdate::replace:
        std::ranges::copy(row, scores.begin());
        break;
    }
  }
}

std::optional<int64_t> HeadEviction::next_evicted(const HeadCache& cache, int64_t newest) const {
  if (entries_ <= budget_) return std::nullopt;
  if (rules_.given) return chosen_by_method(cache);
  std::vector<int64_t> candidates;
  for (int64_t entry = 0; entry < entries_; ++entry) {
    if (!rules_.always_keeps(cache.positions[entry], newest)) candidates.push_back(entry);
  }
  std::vector<double> scores = reduced_scores();
  if (stages_) {
    candidates = outside_stage_one(std::move(candidates), cache, scores);
    scores = stage_two_scores(of_entries(scores_), of_entries(norms_), stages_->epsilon, stages_->gqa);
  }
  const auto evicted_before = [&](int64_t a, int64_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return scores[i] != scores[j] ? scores[i] < scores[j] : cache.positions[i] > cache.positions[j];
  };
  return *std::ranges::min_element(candidates, evicted_before);
}

int64_t HeadEviction::chosen_by_method(const HeadCache& cache) const {
  const int64_t position = rules_.given->evict(
      {kv_head_, cache.positions, cache.keys.view(), cache.values.view(), weights_.view()});
  const auto entry = std::ranges::find(cache.positions, position);
  if (entry != cache.positions.end()) return entry - cache.positions.begin();
  throw InvalidPolicy("the method evicts position " + std::to_string(position) + " of KV head " +
                      std::to_string(kv_head_) + ", which is not in its cache");
}

// The candidates without those that stage one keeps, which are the ones of largest score
// (ties: smaller position).
std::vector<int64_t> HeadEviction::outside_stage_one(std::vector<int64_t> candidates, const HeadCache& cache,
                                                     VectorView scores) const {
  const auto better = [&](int64_t a, int64_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return scores[i] != scores[j] ? scores[i] > scores[j] : cache.positions[i] < cache.positions[j];
  };
  const int64_t kept = std::ssize(candidates) - (entries_ - budget_);
  const int64_t count = stage_one_count(*stages_, kept, [&] {
    std::ranges::sort(candidates, better);
    return adaptive_count(candidates, kept);
  });
  std::ranges::nth_element(candidates, candidates.begin() + count, better);
  return {candidates.begin() + count, candidates.end()};
}

int64_t HeadEviction::adaptive_count(const std::vector<int64_t>& ranked, int64_t kept) const {
  std::vector<int64_t> always_kept(entries_);
  std::iota(always_kept.begin(), always_kept.end(), 0);
  for (const int64_t entry : ranked) always_kept[entry] = -1;
  std::erase(always_kept, -1);
  return adaptive_stage_one(weights_, always_kept, std::span(ranked).first(kept));
}

void HeadEviction::remove(int64_t entry) {
  --entries_;
  for (Matrix* columns : {&scores_, &squared_norms_, &norms_}) {
    for (int64_t h = 0; h < columns->rows(); ++h) (*columns)(h, entry) = (*columns)(h, entries_);
  }
}

// The running scores [entries], reduced over the group as the prompt's scores are.
std::vector<double> HeadEviction::reduced_scores() const {
  if (!is_scored()) return std::vector<double>(entries_);
  const Matrix reduced = reduce_group(of_entries(scores_), group_size_, score_.group);
  return {reduced.row(0).begin(), reduced.row(0).end()};
}

}  // namespace kvbound::reference
