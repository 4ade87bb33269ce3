#include "evictions.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;
using reference::columns_of;

// Stands for "no bound", as errors of scores that are finite so that 0 times them is 0.
constexpr double kUnboundedScore = 1e100;

bool are_zero(const Matrix& errors) {
  return std::ranges::all_of(errors.numbers(), [](double error) { return error == 0; });
}

// Copies columns one after the other to the columns of these numbers.
void put_columns(const Matrix& columns, const Positions& numbers, Matrix& all) {
  for (int64_t row = 0; row < columns.rows(); ++row) {
    for (size_t j = 0; j < numbers.size(); ++j) all(row, numbers[j]) = columns(row, static_cast<int64_t>(j));
  }
}

Positions positions_at(std::span<const int64_t> entries, const reference::HeadCache& cache) {
  Positions positions;
  for (const int64_t entry : entries) positions.push_back(cache.positions[entry]);
  return positions;
}

// The candidate whose score is surely largest.
int64_t largest_of(const BoundedScores& scores) {
  int64_t best = 0;
  for (int64_t i = 1; i < std::ssize(scores.scores); ++i) {
    if (scores.scores[i] - scores.errors[i] > scores.scores[best] - scores.errors[best]) best = i;
  }
  return best;
}

// Judges an eviction other than the reference's by the host's rules alone; nullopt if the entry is in the
// cache and may be evicted, so that scores have to decide.
std::optional<Choice> judge_unscored(const EvictionPlace& place, int64_t claimed) {
  const int64_t own = place.own();
  const auto wrong = [&](int64_t teacher_forced, const std::string& note) {
    return wrong_choice(place.at, teacher_forced, claimed, own, note);
  };
  const std::string sizes = fmt::format("the cache has {} entries and the budget is {}",
                                        place.stepper.cache().entries(), place.budget);
  if (claimed == kNoPosition) return wrong(own, fmt::format("nothing was evicted, but {}", sizes));
  if (place.stepper.cache().find(claimed) < 0) {
    return wrong(own, fmt::format("position {} was evicted, which is not in the cache", claimed));
  }
  if (own == kNoPosition)
    return wrong(claimed, fmt::format("position {} was evicted, but {}", claimed, sizes));
  if (place.rules.always_keeps(claimed, place.stepper.newest())) {
    return wrong(claimed, fmt::format("position {} was evicted, which is always kept", claimed));
  }
  if (!place.stepper.eviction().is_scored()) {
    return wrong(claimed, fmt::format("position {} was evicted rather than {}", claimed, own));
  }
  return std::nullopt;
}

}  // namespace

int64_t EvictionPlace::own() const {
  const std::optional<int64_t> entry = stepper.own_choice();
  return entry ? stepper.cache().positions[*entry] : kNoPosition;
}

EvictionCandidates EvictionPlace::candidates() const {
  const reference::HeadCache& cache = stepper.cache();
  const auto position_of = [&](int64_t entry) { return cache.positions[entry]; };
  EvictionCandidates candidates;
  for (int64_t entry = 0; entry < cache.entries(); ++entry) {
    if (!rules.always_keeps(position_of(entry), stepper.newest())) candidates.entries.push_back(entry);
  }
  std::ranges::sort(candidates.entries, {}, position_of);
  candidates.positions = positions_at(candidates.entries, cache);
  return candidates;
}

EvictionSizes::EvictionSizes(const traces::Layer& layer, const TestedImplementation& implementation) {
  const Policy& policy = implementation.policy;
  if (!evicts(policy.host)) return;
  if (const ScoreRules score = rules_of(policy.score); score.change) {
    spaces = reference::change_spaces(score.space, layer.output_projection, layer.shape.query_heads);
  }
  if (const SelectionRules selection = rules_of(policy.selection); selection.in_decoding) {
    const Norm norm = selection.two_stage->norm;
    const Matrix norms =
        reference::projected_value_norms(layer.shape, layer.values, layer.output_projection, norm);
    norm_errors = reference::projected_value_norm_errors(layer.shape, layer.values, layer.output_projection,
                                                         norm, norms, implementation.arithmetic.norms(norm));
  }
}

Evictions::Evictions(const traces::Layer& layer, const TestedImplementation& implementation,
                     const EvictionSizes& sizes, const HostRules& rules, int64_t kv_head)
    : layer_(layer),
      implementation_(implementation),
      arithmetic_(implementation.arithmetic.attention),
      rules_(rules),
      score_(rules_of(implementation.policy.score)),
      selection_(rules_of(implementation.policy.selection)),
      g_(kv_head),
      group_size_(layer.shape.group_size()) {
  if (score_.change && rules_.ranks()) {
    spaces_ = std::span(sizes.spaces).subspan(g_ * group_size_, static_cast<size_t>(group_size_));
    measured_ = reference::MeasuredValues(layer.values.slice(g_), spaces_);
  }
  if (!selection_.in_decoding) return;
  const MatrixView own = layer.shape.group_rows(sizes.norm_errors, g_);
  norm_errors_ = Matrix(own.rows, own.cols);
  for (int64_t h = 0; h < own.rows; ++h) std::ranges::copy(own.row(h), norm_errors_.row(h).begin());
}

void Evictions::begin(MatrixView head_errors, const reference::HeadCache& cache, const MergedErrors& errors) {
  running_errors_.emplace(head_errors, group_size_, layer_.keys.view().rows, arithmetic_);
  if (!rules_of(implementation_.policy.merge).merges) return;
  Positions all(cache.entries());
  std::iota(all.begin(), all.end(), 0);
  revalue(all, cache, errors);
}

void Evictions::revalue(std::span<const int64_t> entries, const reference::HeadCache& cache,
                        const MergedErrors& errors) {
  if (!spaces_.empty()) set_sizes(entries, cache);
  if (selection_.in_decoding) set_norm_errors(entries, cache, errors);
}

void Evictions::set_sizes(std::span<const int64_t> entries, const reference::HeadCache& cache) {
  const reference::MeasuredValues own(reference::rows_of(cache.values, entries), spaces_);
  const Positions positions = positions_at(entries, cache);
  put_columns(own.sizes, positions, measured_.sizes);
  put_columns(own.squared_norms, positions, measured_.squared_norms);
}

// Bounds the errors of the projected norms of the cache's values at these indices: those of computing the
// norms, and those of the values.
void Evictions::set_norm_errors(std::span<const int64_t> entries, const reference::HeadCache& cache,
                                const MergedErrors& all_errors) {
  const LayerShape& shape = layer_.shape;
  const auto count = std::ssize(entries);
  const Positions positions = positions_at(entries, cache);
  const Matrix values = reference::rows_of(cache.values, entries);
  const TensorView tensor{values.data(), 1, count, shape.head_dim, count * shape.head_dim};
  const int64_t rows = group_size_ * shape.head_dim;
  const MatrixView projection = layer_.output_projection.view().middle_rows(g_ * rows, rows);
  const LayerShape group{group_size_, 1, shape.head_dim, shape.model_dim};
  const Norm norm = selection_.two_stage->norm;
  const Matrix norms = reference::projected_value_norms(group, tensor, projection, norm);
  Matrix value_errors(count, shape.head_dim);
  for (int64_t j = 0; j < count; ++j) {
    std::ranges::copy(all_errors.entry(positions[j]).value, value_errors.row(j).begin());
  }
  const TensorView moved{value_errors.data(), 1, count, shape.head_dim, count * shape.head_dim};
  put_columns(reference::projected_value_norm_errors(group, tensor, projection, norm, norms,
                                                     implementation_.arithmetic.norms(norm), moved),
              positions, norm_errors_);
}

void Evictions::observe(MatrixView queries, const reference::HeadStepper& stepper, const CacheRowErrors& rows,
                        const reference::AttentionErrors& attention) {
  const reference::HeadCache& cache = stepper.cache();
  if (rules_.ranks()) {
    running_errors_->update(rules_, stepper.eviction(), cache.positions,
                            contribution_errors(queries, cache, rows, attention));
  }
  if (!selection_.in_decoding || selection_.two_stage->alpha) return;
  weights_ = reference::attention(queries, cache.keys, cache.values, layer_.scale, cache.votes).weights;
  weight_errors_ = attention.weights;
}

// Error bounds of a step's contributions to the scores, [group_size, entries]; infinite where there are none.
Matrix Evictions::contribution_errors(MatrixView queries, const reference::HeadCache& cache,
                                      const CacheRowErrors& rows,
                                      const reference::AttentionErrors& attention) const {
  if (!score_.change) return attention.weights;
  if (are_zero(rows.keys) && are_zero(rows.values)) {
    reference::MeasuredValues here;
    here.sizes = columns_of(measured_.sizes, cache.positions);
    here.squared_norms = columns_of(measured_.squared_norms, cache.positions);
    return reference::change_score_errors(*score_.change, queries, cache.keys, cache.values, here, spaces_,
                                          layer_.scale, implementation_.arithmetic.change_scores,
                                          cache.votes);
  }
  Matrix unbounded(group_size_, cache.entries());
  for (int64_t h = 0; h < group_size_; ++h) std::ranges::fill(unbounded.row(h), kInfinity);
  return unbounded;
}

// The candidates' scores, by which one of them is evicted.
struct Evictions::Scored {
  const EvictionPlace& place;
  EvictionCandidates candidates;
  BoundedScores scores;                    // reduced over the group of query heads
  std::optional<BoundedScores> stage_two;  // with `critical`
  CountRange stage_one_counts = {};        // likewise

  bool are_bounded() const {
    return std::ranges::all_of(scores.errors, [](double error) { return error < kUnboundedScore; });
  }
};

Evictions::Scored Evictions::scored(const EvictionPlace& place) const {
  const reference::HeadEviction& eviction = place.stepper.eviction();
  EvictionCandidates candidates = place.candidates();
  const Matrix own = columns_of(eviction.head_scores(), candidates.entries);
  Scored result{place, candidates, running_errors_->reduced(own, candidates.positions, score_.group), {}, {}};
  if (!selection_.in_decoding || !result.are_bounded()) return result;
  const TwoStage& options = *selection_.two_stage;
  const Matrix norms = columns_of(eviction.norms(), candidates.entries);
  result.stage_two = {reference::stage_two_scores(own, norms, options.epsilon, options.gqa),
                      reference::stage_two_score_errors(own, running_errors_->at(candidates.positions), norms,
                                                        columns_of(norm_errors_, candidates.positions),
                                                        options.epsilon, options.gqa, arithmetic_)};
  const int64_t k = std::ssize(candidates.entries) - (place.stepper.cache().entries() - place.budget);
  result.stage_one_counts = stage_one_range(options, k, [&] { return adaptive_range(result, k); });
  return result;
}

CountRange Evictions::adaptive_range(const Scored& scored, int64_t k) const {
  const EvictionPlace& place = scored.place;
  const reference::HeadCache& cache = place.stepper.cache();
  const std::vector<RankRange> ranks = rank_ranges(scored.scores.view());
  Positions always_kept;
  for (int64_t entry = 0; entry < cache.entries(); ++entry) {
    if (place.rules.always_keeps(cache.positions[entry], place.stepper.newest()))
      always_kept.push_back(entry);
  }
  const double adding = reference::sum_rounding(cache.entries(), arithmetic_.in_any_order());
  CountRange all{0, 0};
  for (int64_t h = 0; h < weights_.rows(); ++h) {
    all = CountRange::most(all, adaptive_counts(weights_.row(h), weight_errors_.row(h), always_kept,
                                                scored.candidates.entries, ranks, k, adding));
  }
  return all;
}

// What is wrong with evicting this candidate; nullopt if rounding explains it.
std::optional<Fault> Evictions::fault(const Scored& scored, int64_t candidate) const {
  Positions kept;
  for (int64_t i = 0; i < std::ssize(scored.candidates.entries); ++i) {
    if (i != candidate) kept.push_back(i);
  }
  if (!scored.stage_two) return top_k_fault(scored.scores.view(), kept);
  return critical_fault(scored.scores.view(), scored.stage_two->view(), kept, scored.stage_one_counts);
}

// Whether some other eviction could have been found wrong: that of a candidate with the surest
// claim to stay, if of any.
bool Evictions::can_tell(const EvictionPlace& place) const {
  const Scored all = scored(place);
  if (all.candidates.entries.size() == 1) return true;
  if (!all.are_bounded()) return false;
  return fault(all, largest_of(all.scores)) || (all.stage_two && fault(all, largest_of(*all.stage_two)));
}

Choice Evictions::judge(const EvictionPlace& place, const std::optional<int64_t>& claimed,
                        bool certain) const {
  const int64_t own = place.own();
  if (!claimed) return unjudged_choice(own);
  if (*claimed == own) {
    const bool decided = own == kNoPosition || !rules_.ranks() || (certain && can_tell(place));
    return decided ? same_choice(own) : unjudged_choice(own);
  }
  if (const std::optional<Choice> unscored = judge_unscored(place, *claimed)) return *unscored;
  const Scored all = scored(place);
  if (!certain || !all.are_bounded()) return undecided_choice(*claimed);
  const std::vector<int64_t>& positions = all.candidates.positions;
  const std::optional<Fault> found =
      fault(all, std::ranges::lower_bound(positions, *claimed) - positions.begin());
  if (!found) return near_tie_choice(*claimed, can_tell(place));
  const std::string note = fmt::format("position {} stayed rather than {}, {}", positions[found->chosen],
                                       positions[found->better], text_of(*found));
  return wrong_choice(place.at, *claimed, *claimed, positions[found->chosen], note, std::abs(found->excess()),
                      found->band);
}

}  // namespace kvbound::sim
