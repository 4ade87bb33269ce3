#include "head_cache.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

namespace kvbound::reference {
namespace {

void copy_row(VectorView from, std::span<double> to) { std::ranges::copy(from, to.begin()); }

// The columns of the entries, and room for more.
Matrix entry_columns(MatrixView prompt, const std::vector<int64_t>& positions, int64_t room) {
  Matrix columns(prompt.rows, room);
  for (int64_t h = 0; h < prompt.rows; ++h) {
    for (size_t j = 0; j < positions.size(); ++j)
      columns(h, static_cast<int64_t>(j)) = prompt(h, positions[j]);
  }
  return columns;
}

}  // namespace

void HeadCache::append(int64_t position, VectorView key, VectorView value) {
  positions.push_back(position);
  keys.append_row(key);
  values.append_row(value);
  if (!votes.empty()) votes.push_back(1);
}

void HeadCache::remove(int64_t entry) {
  const int64_t last = entries() - 1;
  positions[static_cast<size_t>(entry)] = positions.back();
  positions.pop_back();
  if (!votes.empty()) {
    votes[static_cast<size_t>(entry)] = votes.back();
    votes.pop_back();
  }
  for (Matrix* rows : {&keys, &values}) {
    copy_row(rows->row(last), rows->row(entry));
    rows->drop_last_row();
  }
}

Eviction::Eviction(const LayerView& layer, const Policy& policy, int64_t kv_head, int64_t budget,
                   MatrixView head_scores, MatrixView norms, const HeadCache& cache)
    : policy_(policy),
      rules_(rules_of(policy.host, layer.prompt_tokens(), budget)),
      budget_(budget),
      scale_(layer.scale),
      group_size_(layer.shape.group_size()),
      entries_(cache.entries()),
      output_projection_(layer.output_projection.middle_rows(kv_head * group_size_ * layer.shape.head_dim,
                                                             group_size_ * layer.shape.head_dim)) {
  if (!is_scored()) return;
  const int64_t room = std::max(entries_, budget_) + 1;  // of what a claimant kept there may be too few
  scores_ = entry_columns(head_scores, cache.positions, room);
  if (norms.rows > 0) {
    norms_ = Matrix(group_size_, room);
    for (int64_t h = 0; h < group_size_; ++h) copy_row(norms.row(h), norms_.row(h));
  }
  if (!change_of(policy.score)) return;
  spaces_ = value_spaces(space_of(policy.score), output_projection_, group_size_);
  const Matrix norms_there = squared_norms(cache.values, spaces_);
  squared_norms_ = Matrix(group_size_, room);
  for (int64_t h = 0; h < group_size_; ++h) copy_row(norms_there.row(h), squared_norms_.row(h));
}

void Eviction::enter(const HeadCache& cache) {
  const int64_t entry = entries_++;
  if (!is_scored()) return;
  for (int64_t h = 0; h < group_size_; ++h) scores_(h, entry) = 0;
  revalue(entry, cache);
}

void Eviction::revalue(int64_t entry, const HeadCache& cache) {
  if (!is_scored()) return;
  const MatrixView value = cache.values.view().middle_rows(entry, 1);
  for (int64_t h = 0; h < group_size_; ++h) {
    if (!spaces_.empty()) {
      squared_norms_(h, entry) = spaces_[static_cast<size_t>(h)].squared_norms(value).front();
    }
    if (const auto* critical = std::get_if<Critical>(&policy_.selection)) {
      const int64_t head_dim = value.cols;
      norms_(h, entry) = projected_value_norms(value, output_projection_.middle_rows(h * head_dim, head_dim),
                                               critical->norm)[0];
    }
  }
}

Matrix Eviction::attend(MatrixView queries, const HeadCache& cache) {
  if (const std::optional<Change> change = change_of(policy_.score); change && is_scored()) {
    const ScoredCache scored{cache.keys, cache.values, there(squared_norms_), spaces_, cache.votes};
    ScoredAttention attention = scored_attention(*change, queries, scored, scale_);
    take_in(attention.scores);
    return std::move(attention.output);
  }
  AttentionOutput attention = reference::attention(queries, cache.keys, cache.values, scale_, cache.votes);
  if (is_scored()) take_in(attention.weights);
  weights_ = std::move(attention.weights);
  return std::move(attention.output);
}

void Eviction::take_in(MatrixView contributions) {
  const bool adds_up = std::holds_alternative<H2o>(policy_.host);
  for (int64_t h = 0; h < group_size_; ++h) {
    const std::span<double> scores = scores_.row(h);
    const VectorView row = contributions.row(h);
    for (size_t j = 0; j < row.size(); ++j) scores[j] = adds_up ? scores[j] + row[j] : row[j];
  }
}

std::optional<int64_t> Eviction::who_leaves(const HeadCache& cache, int64_t newest) const {
  if (entries_ <= budget_) return std::nullopt;
  std::vector<int64_t> candidates;
  for (int64_t entry = 0; entry < entries_; ++entry) {
    if (!rules_.always_keeps(cache.positions[static_cast<size_t>(entry)], newest))
      candidates.push_back(entry);
  }
  std::vector<double> scores = reduced_scores();
  if (const auto* critical = std::get_if<Critical>(&policy_.selection)) {
    candidates = outside_stage_one(std::move(candidates), cache, *critical, scores);
    scores = stage_two_scores(there(scores_), there(norms_), critical->epsilon, critical->gqa);
  }
  const auto leaves_before = [&](int64_t a, int64_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return scores[i] != scores[j] ? scores[i] < scores[j] : cache.positions[i] > cache.positions[j];
  };
  return *std::ranges::min_element(candidates, leaves_before);
}

// Without the candidates that stage one protects: the best by score, ties to the smaller position.
std::vector<int64_t> Eviction::outside_stage_one(std::vector<int64_t> candidates, const HeadCache& cache,
                                                 const Critical& options, VectorView scores) const {
  const auto better = [&](int64_t a, int64_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return scores[i] != scores[j] ? scores[i] > scores[j] : cache.positions[i] < cache.positions[j];
  };
  const int64_t staying = static_cast<int64_t>(candidates.size()) - (entries_ - budget_);
  int64_t count = 0;
  if (options.alpha) {
    count = floor_of_product(*options.alpha, staying);
    std::ranges::nth_element(candidates, candidates.begin() + count, better);
  } else {
    std::ranges::sort(candidates, better);
    count = adaptive_count(candidates, staying);
  }
  return {candidates.begin() + count, candidates.end()};
}

int64_t Eviction::adaptive_count(const std::vector<int64_t>& ranked, int64_t staying) const {
  std::vector<int64_t> always_kept(static_cast<size_t>(entries_));
  std::iota(always_kept.begin(), always_kept.end(), 0);
  for (const int64_t entry : ranked) always_kept[static_cast<size_t>(entry)] = -1;
  std::erase(always_kept, -1);
  return adaptive_stage_one(weights_, always_kept, std::span(ranked).first(static_cast<size_t>(staying)));
}

void Eviction::leave(int64_t entry) {
  --entries_;
  for (Matrix* columns : {&scores_, &squared_norms_, &norms_}) {
    for (int64_t h = 0; h < columns->rows(); ++h) (*columns)(h, entry) = (*columns)(h, entries_);
  }
}

// [group_size, entries], as the prompt's scores are reduced.
std::vector<double> Eviction::reduced_scores() const {
  if (!is_scored()) return std::vector<double>(static_cast<size_t>(entries_));
  const Matrix reduced = change_of(policy_.score) ? group_sum(there(scores_), group_size_)
                                                  : group_mean(there(scores_), group_size_);
  return {reduced.row(0).begin(), reduced.row(0).end()};
}

}  // namespace kvbound::reference
