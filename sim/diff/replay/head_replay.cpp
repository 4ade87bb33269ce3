#include "head_replay.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/sim/diff/judge/clusters.hpp>
#include <kvbound/sim/diff/judge/whole_rows.hpp>

namespace kvbound::sim {
namespace {
using Positions = std::vector<int64_t>;

// Those in which a merged entry's claimed key and value are judged; nullopt: no row is claimed.
reference::MergeDirections merge_directions(const ExactRows& claimed, const std::optional<int64_t>& row,
                                            VectorView key, VectorView value) {
  reference::MergeDirections directions;
  if (!row) return directions;
  if (const auto own = claimed.key(*row)) directions.key = judged_directions(key, *own);
  if (const auto own = claimed.value(*row)) directions.value = judged_directions(value, *own);
  return directions;
}

}  // namespace

HeadReplay::HeadReplay(const ReplayedLayer& part, int64_t kv_head, const Positions& kept, bool explained)
    : part_(part),
      layer_(part.layer),
      policy_(part.implementation.policy),
      arithmetic_(part.implementation.arithmetic.attention),
      g_(kv_head),
      group_size_(layer_.shape.group_size()),
      budget_(part.implementation.budget(kv_head)),
      rules_(rules_of(policy_.host, layer_.prompt_tokens, budget_)),
      merge_rules_(rules_of(policy_.merge)),
      stepper_(part.prompt, policy_, kv_head, budget_),
      errors_(layer_, policy_, arithmetic_, part.implementation.merged_storage, kv_head) {
  if (rules_.evicts) evictions_.emplace(layer_, part.implementation, part.sizes, rules_, g_);
  if (merge_rules_.merges) {
    fill_prompt(kept, explained);
  } else {
    stepper_.fill(part.prompt, kept);
  }
  if (!rules_.evicts) return;
  begin_evicting(part.prompt, group(part.errors.ranking.head_scores), group(part.errors.head_score));
}

void HeadReplay::skip(int64_t t) {
  const StepView view = layer_.step(t);
  stepper_.enter(layer_.prompt_tokens + t, view.keys.row(g_), view.values.row(g_));
}

ReplayedStep HeadReplay::step(int64_t t, const ClaimedStep& claimed, const Attended& attended) {
  queries_ = group(layer_.step(t).queries);
  ReplayedStep result;
  result.rebuilt = merge_rules_.rebuilds_at(t);
  if (result.rebuilt) {
    rebuild(t);
    result.positions = merged_.positions;
    result.target_of = merged_.target_of;
  } else {
    skip(t);
    if (merge_rules_.merges) revalue(cache().entries() - 1);
  }
  if (rules_.evicts || attended) attend(t, attended);
  if (rules_.evicts) choose(t, claimed, result);
  return result;
}

// Fills the cache with the kept entries of the prompt, and merges the others into them.
void HeadReplay::fill_prompt(const Positions& kept, bool explained) {
  const reference::MergeTargets targets = prompt_targets(kept, explained);
  errors_.accumulate_prompt(part_.prompt, part_.log_sum_exp_errors);
  const ClaimedCache claimed{part_.exact_prompt,
                             part_.first_rows.empty() ? std::nullopt : part_.first_rows[g_]};
  fill(part_.prompt, targets, part_.averages ? &(*part_.averages)[g_] : nullptr, claimed);
  prompt_entries_ = expected_entries();
  force(claimed);
}

MatrixView HeadReplay::last_queries(const LayerView& view) const {
  return group(view.queries.row_of_slices(view.window_queries() - 1));
}

// Returns the reference's targets, and sets the member ranges that rounding allows.
reference::MergeTargets HeadReplay::prompt_targets(const Positions& kept, bool explained) {
  members_.assign(kept.size(), {});
  const MatrixView keys = part_.prompt.keys.slice(g_);
  const std::optional<SimilarTarget>& target = merge_rules_.target;
  if (!target) return {kept, {}, {}};  // CaM's draws: derive_spread_errors
  if (!part_.target_of.empty()) return recorded_targets(kept);
  if (merge_rules_.order == MergeOrder::merge_first) {
    certain_ = false;
    for (MemberRange& range : members_) range.most = layer_.prompt_tokens;
    if (!explained) return {kept, {}, {}};
    const reference::Ranking& ranking = part_.errors.ranking;
    return reference::merge_first(keys, ranking.candidate_scores(ranking.scores, g_), ranking.always_kept,
                                  budget_ - std::ssize(ranking.always_kept), *target);
  }
  members_ = member_ranges(keys, kept, *target, part_.implementation.arithmetic.nearest_keys);
  for (const MemberRange& range : members_) certain_ = certain_ && range.least == range.most;
  return reference::evict_first(keys, kept, *target);
}

// Judges the clusters that are recorded, and follows them.
reference::MergeTargets HeadReplay::recorded_targets(const Positions& kept) {
  const MatrixView keys = part_.prompt.keys.slice(g_);
  const std::span<const int64_t> claimed = part_.target_of.subspan(g_ * keys.rows, keys.rows);
  const SimilarTarget& target = *merge_rules_.target;
  const reference::Ranking& ranking = part_.errors.ranking;
  const reference::Arithmetic& arithmetic = part_.implementation.arithmetic.nearest_keys;
  const auto judge = [&]() -> TargetsJudgement {
    if (merge_rules_.order == MergeOrder::evict_first) {
      return judge_evict_first(keys, kept, target, arithmetic, claimed, {g_, 0});
    }
    const UncertainScores scores{ranking.candidate_scores(ranking.scores, g_),
                                 ranking.candidate_scores(part_.errors.score, g_)};
    return judge_merge_first(keys, kept, {ranking.candidate_positions(), scores}, target, arithmetic, claimed,
                             {g_, 0});
  };
  TargetsJudgement judgement = judge();
  targets_ = std::move(judgement.choices);
  count_members(judgement.targets);
  return std::move(judgement.targets);
}

// Sets the number of members of clusters that are certain.
void HeadReplay::count_members(const reference::MergeTargets& targets) {
  for (const MergeCluster& cluster : targets.clusters) {
    MemberRange& range =
        members_[std::ranges::lower_bound(targets.kept, cluster.into) - targets.kept.begin()];
    range.least = range.most = std::ssize(cluster.from);
  }
}

// The cache as it was filled, with error bounds of its numbers as stored.
ExpectedEntries HeadReplay::expected_entries() const {
  ExpectedEntries entries{merged_.votes, merged_.keys, merged_.values, {}, members_};
  for (const int64_t position : merged_.positions) entries.add_errors(errors_, position);
  return entries;
}

// Continues with the claimed numbers of the cache as it was filled.
void HeadReplay::force(const ClaimedCache& claimed) {
  if (!claimed.first) return;
  for (size_t i = 0; i < merged_.positions.size(); ++i) {
    force(merged_.positions[i], claimed.rows.entry(*claimed.first + static_cast<int64_t>(i)));
  }
}

void HeadReplay::force(int64_t position, const ExactEntry& exact) {
  if (!exact.is_any()) return;
  const int64_t entry = cache().find(position);
  const auto copy = [](VectorView row) { return std::vector<double>(row.begin(), row.end()); };
  const std::vector<double> key = copy(exact.key.value_or(cache().keys.row(entry))),
                            value = copy(exact.value.value_or(cache().values.row(entry)));
  const double votes = cache().votes.empty() ? 1 : cache().votes[entry];
  stepper_.replace(entry, exact.votes.value_or(votes), key, value);
  if (exact.key) errors_.set_exact_key(position);
  if (exact.value) errors_.set_exact_value(position);
}

// Fills the cache with the kept entries and merges the evicted ones into them.
//
// view  its last queries are those that merge
void HeadReplay::fill(const LayerView& view, const reference::MergeTargets& targets,
                      const reference::ScoreEma* known, const ClaimedCache& claimed) {
  errors_.forget_entries();
  stepper_.fill(view, targets.kept);
  merged_ = stepper_.merge(view, targets, known);
  if (merge_rules_.spread) {
    derive_spread_errors(*merge_rules_.spread, view);
  } else {
    derive_cluster_errors(view, known, claimed);
  }
}

// Derives error bounds of the entries merged from whole clusters of original entries.
void HeadReplay::derive_cluster_errors(const LayerView& view, const reference::ScoreEma* known,
                                       const ClaimedCache& claimed) {
  if (merged_.clusters.empty()) return;
  MergingCache all{last_queries(view), {}, {}, {}};
  if (merge_rules_.prediction) {
    all.log_scores = known ? known->log_predicted(view.prompt_tokens())
                           : reference::attention_logits(all.queries, view.keys.slice(g_), layer_.scale);
    all.positions.resize(view.prompt_tokens());
    std::iota(all.positions.begin(), all.positions.end(), 0);
  }
  // All members' error bounds are read before those of any merged entry are written.
  std::map<int64_t, reference::MergedEntryErrors> found;
  for (const MergeCluster& merged : merged_.clusters) {
    Positions positions{merged.into};
    positions.insert(positions.end(), merged.from.begin(), merged.from.end());
    reference::ClusterMembers members;
    members.keys = reference::rows_of(layer_.keys.slice(g_), positions);
    members.values = reference::rows_of(layer_.values.slice(g_), positions);
    members.votes.assign(positions.size(), 1);
    members.log_scores = merged.log_scores;
    const auto entry = std::ranges::lower_bound(merged_.positions, merged.into) - merged_.positions.begin();
    const auto row = claimed.first ? std::optional(*claimed.first + entry) : std::nullopt;
    found[merged.into] = errors_.merged(
        all, members, positions,
        merge_directions(claimed.rows, row, merged_.keys.row(entry), merged_.values.row(entry)));
  }
  for (auto& [into, errors] : found) {
    const int64_t entry = cache().find(into);
    errors_.put(into, std::move(errors));
    errors_.store_key(into, cache().keys.row(entry));
    errors_.store_value(into, cache().values.row(entry));
  }
}

// Derives the error bounds of CaM's values after the prompt. The cache holds the final sums already;
// add_on_the_way covers partial sums of larger magnitude.
void HeadReplay::derive_spread_errors(const Cam& cam, const LayerView& view) {
  const MatrixView keys = view.keys.slice(g_), values = view.values.slice(g_);
  const MeanAttention attention = mean_attention(last_queries(view), keys, layer_.scale, {}, arithmetic_);
  std::set<int64_t> stored;  // positions whose own storage error has been added
  for (int64_t position = 0; position < view.prompt_tokens(); ++position) {
    if (std::ranges::binary_search(cache().positions, position)) continue;
    const Positions entries = reference::following_entries(cache().positions, position, cam.neighbours);
    Positions following;
    for (const int64_t entry : entries) following.push_back(cache().positions[entry]);
    const SpreadAmbiguity ambiguity =
        spread_ambiguity(cam, attention, position, following, g_, position, arithmetic_);
    if (!ambiguity.may) continue;
    if (ambiguity.may_not) certain_ = false;
    const VectorView value = values.row(position);
    const auto sharing = std::ssize(entries);
    for (const int64_t entry : entries) {
      if (ambiguity.may_not) ++members_[entry].most;
      const int64_t into = cache().positions[entry];
      if (stored.insert(into).second) errors_.add_storage(into, values.row(into));
      errors_.add_spread(into, cache().values.row(entry), value, storage_errors(value, arithmetic_), sharing);
      errors_.add_on_the_way(into, value, sharing);
    }
  }
  for (const int64_t into : stored) errors_.store_value(into, cache().values.row(cache().find(into)));
}

void HeadReplay::begin_evicting(const LayerView& view, MatrixView head_scores, MatrixView head_errors) {
  const auto& norms = part_.reference.projected_value_norms;
  stepper_.begin_evicting(view, head_scores, norms ? group(*norms) : MatrixView());
  evictions_->begin(head_errors, cache(), errors_);
}

// Replaces the cache by the rebuilt one, which does not depend on earlier choices: by the recorded selection
// and clusters, or else by the reference's.
void HeadReplay::rebuild(int64_t t) {
  const int64_t number = merge_rules_.rebuilds_in(t);
  const RebuiltLayer& rebuilt = part_.rebuilt[number];
  const MatrixView keys = rebuilt.view.keys.slice(g_);
  const SimilarTarget& target = *merge_rules_.target;
  certain_ = !rebuilt.target_of.empty();
  reference::MergeTargets targets;
  if (certain_) {
    const int64_t tokens = layer_.prompt_tokens + part_.implementation.steps;
    const std::span<const int64_t> claimed = rebuilt.target_of.subspan(g_ * tokens, tokens);
    TargetsJudgement judgement =
        judge_evict_first(keys, rebuilt.kept[g_], target, part_.implementation.arithmetic.nearest_keys,
                          claimed.first(keys.rows), {number, g_, 0});
    std::ranges::move(judgement.choices, std::back_inserter(rebuilt_targets_));
    for (int64_t i = keys.rows; i < tokens; ++i) {
      if (claimed[i] == kNothingEvicted) continue;
      rebuilt_targets_.push_back(wrong_entry({number, g_, i}, kNothingEvicted, claimed[i], kNothingEvicted,
                                             fmt::format("position {} is still to come", i)));
    }
    targets = std::move(judgement.targets);
  } else {
    targets = reference::evict_first(keys, rebuilt.kept[g_], target);
  }
  const ClaimedCache rows{part_.exact_rebuilds, certain_ ? rebuilt.first_rows[g_] : std::nullopt};
  errors_.restart(queries_, keys);
  members_.assign(targets.kept.size(), {0, certain_ ? 0 : keys.rows});
  if (certain_) count_members(targets);
  fill(rebuilt.view, targets, nullptr, rows);
  rebuilt_entries_.push_back(expected_entries());
  force(rows);
  if (rules_.evicts) begin_evicting(rebuilt.view, Matrix(group_size_, rebuilt.view.prompt_tokens()), {});
}

void HeadReplay::attend(int64_t t, const Attended& attended) {
  const CacheRowErrors rows = errors_.of(cache());
  reference::CacheErrors given = rows.view();
  given.in_order = !rules_.evicts;  // a kernel may put a new entry in the place of an evicted one
  const reference::AttentionErrors errors = reference::attention_errors(
      queries_, cache().keys, cache().values, layer_.scale, cache().votes, arithmetic_, given);
  const Matrix output = stepper_.attend(queries_);
  if (attended) attended({t, g_, queries_, cache(), output, errors, certain_});
  if (!rules_.evicts) return;
  evictions_->observe(queries_, stepper_, rows, errors);
  errors_.observe(queries_, cache(), stepper_.newest() + 1, errors);
  if (merge_rules_.spread) {
    attention_ = mean_attention(queries_, cache().keys, layer_.scale, rows.keys, arithmetic_);
  }
}

// Judges which entry is evicted and which entry it merges with, and applies both choices.
void HeadReplay::choose(int64_t t, const ClaimedStep& claimed, ReplayedStep& result) {
  result.evicted = evictions_->judge({{t, g_}, budget_, rules_, stepper_}, claimed.evicted, certain_);
  if (merge_rules_.merges) return choose_target(t, claimed, result);
  const int64_t entry = cache().find(result.evicted.teacher_forced);
  if (entry >= 0) stepper_.evict(entry, queries_);
}

void HeadReplay::choose_target(int64_t t, const ClaimedStep& claimed, ReplayedStep& result) {
  if (result.evicted.teacher_forced == kNoPosition) {
    result.into = {kNothingEvicted};
    if (claimed.into && *claimed.into != kNothingEvicted) {
      result.into =
          wrong_choice({t, g_}, kNothingEvicted, *claimed.into, kNothingEvicted, "nothing was evicted");
    }
    return;
  }
  const int64_t entry = cache().find(result.evicted.teacher_forced);
  const bool was_certain = certain_;
  result.into = judge_into(t, entry, claimed.into);
  evict(t, entry, result.into.teacher_forced, result.merged);
  errors_.forget(result.evicted.teacher_forced);
  if (!was_certain || !certain_) {
    for (MemberRange& range : result.merged.members) range.most = layer_.keys.view().rows;
  }
  force_step(t, claimed, result);
}

// Continues with the claimed numbers of the entry that the evicted one merged into, unless a claimed
// choice was not followed.
void HeadReplay::force_step(int64_t t, const ClaimedStep& claimed, ReplayedStep& result) {
  const int64_t into = result.into.teacher_forced;
  result.followed =
      claimed.evicted.value_or(result.evicted.teacher_forced) == result.evicted.teacher_forced &&
      claimed.into.value_or(into) == into;
  if (result.merged.members.empty() || !result.followed) return;
  force(into, part_.exact_steps.entry(step_row(t)));
  revalue(cache().find(into));
}

Choice HeadReplay::judge_into(int64_t t, int64_t leaving, const std::optional<int64_t>& claimed) {
  const reference::Arithmetic& arithmetic =
      merge_rules_.spread ? arithmetic_ : part_.implementation.arithmetic.nearest_key;
  const LeavingEntry entry{{t, g_}, leaving, cache(), errors_, arithmetic, certain_};
  const TargetJudgement judgement = merge_rules_.spread
                                        ? judge_spread(entry, *merge_rules_.spread, attention_, claimed)
                                        : judge_target(entry, *merge_rules_.target, claimed);
  certain_ = judgement.certain;
  return judgement.choice;
}

reference::ClusterMembers HeadReplay::members_at(const Positions& positions) const {
  reference::ClusterMembers members;
  for (const int64_t position : positions) {
    const int64_t entry = cache().find(position);
    members.keys.append_row(cache().keys.row(entry));
    members.values.append_row(cache().values.row(entry));
    members.votes.push_back(cache().votes.empty() ? 1 : cache().votes[entry]);
  }
  return members;
}

// Evicts and merges as chosen, and derives the error bounds of the merged numbers.
void HeadReplay::evict(int64_t t, int64_t entry, int64_t into, ExpectedEntries& merged) {
  if (into == kNotMerged) {
    stepper_.evict(entry, queries_, into);
  } else if (merge_rules_.spread) {
    spread(*merge_rules_.spread, entry, into);
  } else {
    merge(t, entry, into, merged);
  }
}

void HeadReplay::merge(int64_t t, int64_t entry, int64_t into, ExpectedEntries& merged) {
  const Positions positions{into, cache().positions[entry]};
  reference::ClusterMembers members = members_at(positions);
  const MergingCache before{queries_, stepper_.merging().predicted(), cache().votes, cache().positions};
  const reference::EvictedEntry evicted = stepper_.evict(entry, queries_, into);
  if (evicted.merge.clusters.empty()) return;
  members.log_scores = evicted.merge.clusters.front().log_scores;
  const reference::MergeDirections directions = merge_directions(
      part_.exact_steps, step_row(t), evicted.merge.keys.row(0), evicted.merge.values.row(0));
  errors_.put(into, errors_.merged(before, members, positions, directions));
  errors_.store_key(into, evicted.merge.keys.row(0));
  errors_.store_value(into, evicted.merge.values.row(0));
  revalue(cache().find(into));
  merged = {evicted.merge.votes, evicted.merge.keys, evicted.merge.values, {}, {{1, 1}}};
  merged.add_errors(errors_, into);
}

void HeadReplay::spread(const Cam& cam, int64_t entry, int64_t into) {
  const int64_t position = cache().positions[entry];
  const Positions entries = reference::following_entries(cache().positions, position, cam.neighbours);
  const VectorView value = cache().values.row(entry);
  const std::vector<double> off = errors_.stored_value(position, value);
  Positions shared_by;
  for (const int64_t sharing : entries) {
    shared_by.push_back(cache().positions[sharing]);
    errors_.add_storage(shared_by.back(), cache().values.row(sharing));
    errors_.add_spread(shared_by.back(), cache().values.row(sharing), value, off, std::ssize(entries));
  }
  stepper_.evict(entry, queries_, into);
  for (const int64_t changed : shared_by) {
    const int64_t at = cache().find(changed);
    errors_.store_value(changed, cache().values.row(at));
    revalue(at);
  }
}

// Takes in an entry's value for the judgement of evictions.
void HeadReplay::revalue(int64_t entry) {
  if (evictions_) evictions_->revalue(std::array{entry}, cache(), errors_);
}

}  // namespace kvbound::sim
