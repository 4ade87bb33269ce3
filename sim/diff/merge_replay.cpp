#include "merge_replay.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <variant>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/reference/numerics/columns.hpp>

#include "near_tie.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;
using reference::columns_of;

constexpr int64_t kNobodyLeft = -2;

int64_t index_of(const Positions& positions, int64_t position) {
  const auto found = std::ranges::find(positions, position);
  return found == positions.end() ? -1 : found - positions.begin();
}

}  // namespace

MergeReplay::MergeReplay(const MergedLayer& part, int64_t kv_head, const Positions& kept, bool explained)
    : part_(part),
      layer_(part.layer),
      policy_(part.implementation.policy),
      arithmetic_(part.implementation.arithmetic.attention),
      g_(kv_head),
      group_size_(layer_.shape.group_size()),
      budget_(part.implementation.budget(kv_head)),
      rules_(rules_of(policy_.host, layer_.prompt_tokens, budget_)),
      errors_(layer_, policy_, arithmetic_, kv_head) {
  const reference::MergeTargets targets = prompt_targets(kept, explained);
  errors_.take_in_prompt(part.prompt, part.log_sum_exp_errors);
  fill(part.prompt, targets, part.averages ? &(*part.averages)[static_cast<size_t>(g_)] : nullptr);
  if (!evicts(policy_.host)) return;
  begin_evicting(part.prompt, group(part.errors.ranking.head_scores), group(part.errors.head_score));
}

std::vector<double> MergeReplay::key_errors(size_t entry) const {
  return errors_.stored_key(merged_.positions[entry], merged_.keys.row(static_cast<int64_t>(entry)));
}

std::vector<double> MergeReplay::value_errors(size_t entry) const {
  return errors_.stored_value(merged_.positions[entry], merged_.values.row(static_cast<int64_t>(entry)));
}

MergeStep MergeReplay::step(int64_t t, const ClaimedStep& claimed) {
  newest_ = layer_.prompt_tokens + t;
  queries_ = layer_.step(t).queries.middle_rows(g_ * group_size_, group_size_);
  MergeStep result;
  const auto* keep_kv = std::get_if<KeepKv>(&policy_.merge);
  result.rebuilt = keep_kv && keep_kv->period && (t + 1) % *keep_kv->period == 0;
  if (result.rebuilt) {
    rebuild(t);
    result.positions = merged_.positions;
  } else {
    enter(t);
  }
  attend(result);
  if (eviction_) choose(t, claimed, result);
  return result;
}

MatrixView MergeReplay::group(MatrixView rows) const {
  return rows.rows > 0 ? rows.middle_rows(g_ * group_size_, group_size_) : MatrixView();
}

MatrixView MergeReplay::last_queries(const LayerView& view) const {
  return group(view.queries.row_of_slices(view.window_queries() - 1));
}

// Who goes to whom by the reference, and who may go where.
reference::MergeTargets MergeReplay::prompt_targets(const Positions& kept, bool explained) {
  members_.assign(kept.size(), {});
  const MatrixView keys = part_.prompt.keys.slice(g_);
  const std::optional<SimilarTarget> target = reference::target_of(policy_.merge);
  if (!target) return {kept, {}};  // CaM's draws: take_spread_errors
  const auto* keep_kv = std::get_if<KeepKv>(&policy_.merge);
  if (keep_kv && keep_kv->order == MergeOrder::merge_first) {
    certain_ = false;
    for (MemberRange& range : members_) range.most = layer_.prompt_tokens;
    if (!explained) return {kept, {}};
    const reference::Ranking& ranking = part_.errors.ranking;
    return reference::merge_first(keys, ranking.first_candidate, ranking.candidate_scores(ranking.scores, g_),
                                  ranking.always_kept,
                                  budget_ - static_cast<int64_t>(ranking.always_kept.size()), *target);
  }
  members_ = member_ranges(keys, kept, *target, arithmetic_);
  for (const MemberRange& range : members_) certain_ = certain_ && range.least == range.most;
  return reference::evict_first(keys, kept, *target);
}

// A cache of those who stay, merged with those who do not.
//
// view  ends with the queries that merge
void MergeReplay::fill(const LayerView& view, const reference::MergeTargets& targets,
                       const reference::ScoreEma* known) {
  cache_ = {};
  errors_.forget_entries();
  for (const int64_t position : targets.kept) {
    cache_.append(position, layer_.keys.slice(g_).row(position), layer_.values.slice(g_).row(position));
  }
  merging_.emplace(policy_.merge, view, g_);
  merged_ = merging_->compress(view, targets, known, cache_);
  if (const auto* cam = std::get_if<Cam>(&policy_.merge)) {
    take_spread_errors(*cam, view);
  } else if (!merged_.clusters.empty()) {
    take_cluster_errors(view, known);
  }
}

// What merging whole groups of original entries may be off by.
void MergeReplay::take_cluster_errors(const LayerView& view, const reference::ScoreEma* known) {
  MergingCache all{last_queries(view), {}, {}, {}};
  if (reference::prediction_of(policy_.merge)) {
    all.log_scores = known ? known->log_predicted(view.prompt_tokens())
                           : reference::attention_logits(all.queries, view.keys.slice(g_), layer_.scale);
    all.positions.resize(static_cast<size_t>(view.prompt_tokens()));
    std::iota(all.positions.begin(), all.positions.end(), 0);
  }
  // Errors of members are all taken before any of a merged entry is put.
  std::map<int64_t, reference::MergedEntryErrors> found;
  for (const MergeCluster& merged : merged_.clusters) {
    Positions positions{merged.into};
    positions.insert(positions.end(), merged.from.begin(), merged.from.end());
    reference::ClusterMembers members;
    members.keys = reference::rows_of(layer_.keys.slice(g_), positions);
    members.values = reference::rows_of(layer_.values.slice(g_), positions);
    members.votes.assign(positions.size(), 1);
    members.log_scores = merged.log_scores;
    found[merged.into] = errors_.merged(all, members, positions);
  }
  for (auto& [into, errors] : found) errors_.put(into, std::move(errors));
}

// After the prompt; the cache's values are merged already, which differs from values on the way by no more than they.
void MergeReplay::take_spread_errors(const Cam& cam, const LayerView& view) {
  const MatrixView keys = view.keys.slice(g_), values = view.values.slice(g_);
  const MeanAttention attention = mean_attention(last_queries(view), keys, layer_.scale, {}, arithmetic_);
  for (int64_t position = 0; position < view.prompt_tokens(); ++position) {
    if (std::ranges::binary_search(cache_.positions, position)) continue;
    const Positions entries = reference::following_entries(cache_.positions, position, cam.neighbours);
    Positions following;
    for (const int64_t entry : entries) following.push_back(cache_.positions[static_cast<size_t>(entry)]);
    const SpreadDoubt doubt = spread_doubt(cam, attention, position, following, g_, position, arithmetic_);
    if (!doubt.may) continue;
    if (doubt.may_not) certain_ = false;
    const VectorView value = values.row(position);
    const auto sharing = static_cast<int64_t>(entries.size());
    for (const int64_t entry : entries) {
      if (doubt.may_not) ++members_[static_cast<size_t>(entry)].most;
      const int64_t into = cache_.positions[static_cast<size_t>(entry)];
      errors_.add_spread(into, cache_.values.row(entry), value, storage_errors(value, arithmetic_), sharing);
      errors_.add_on_the_way(into, value, sharing);
    }
  }
}

void MergeReplay::begin_evicting(const LayerView& view, MatrixView head_scores, MatrixView head_errors) {
  Matrix norms;
  if (const auto* critical = std::get_if<Critical>(&policy_.selection)) {
    norms = Matrix(group_size_, cache_.entries());
    for (int64_t i = 0; i < group_size_; ++i) {
      const MatrixView projection = view.head_projection(g_ * group_size_ + i);
      std::ranges::copy(reference::projected_value_norms(cache_.values, projection, critical->norm),
                        norms.row(i).begin());
    }
  }
  eviction_.emplace(view, policy_, g_, budget_, head_scores, norms, cache_);
  running_errors_ = Matrix(group_size_, layer_.keys.view().rows);
  for (int64_t h = 0; h < head_errors.rows; ++h) {
    std::ranges::copy(head_errors.row(h), running_errors_.row(h).begin());
  }
}

// The layer as if its prompt went on to this step.
LayerView MergeReplay::view_at(int64_t t) const {
  LayerView view = part_.prompt;
  const int64_t tokens = layer_.prompt_tokens + t + 1;
  view.keys = layer_.keys.view().middle_rows(0, tokens);
  view.values = layer_.values.view().middle_rows(0, tokens);
  view.queries = layer_.queries.view().middle_rows(part_.prompt.window_queries() + t, 1);
  return view;
}

// The reference's own selection, which no choice of before has a part in.
void MergeReplay::rebuild(int64_t t) {
  certain_ = false;
  const HeadMerge& record = part_.rebuilds[static_cast<size_t>(t)].merges[static_cast<size_t>(g_)];
  const LayerView view = view_at(t);
  errors_.restart(queries_, view.keys.slice(g_));
  fill(view, {record.positions, record.clusters}, nullptr);
  if (eviction_) begin_evicting(view, Matrix(group_size_, view.prompt_tokens()), {});
}

void MergeReplay::enter(int64_t t) {
  const StepView view = layer_.step(t);
  cache_.append(newest_, view.keys.row(g_), view.values.row(g_));
  if (!eviction_) return;
  eviction_->enter(cache_);
  merging_->enter(cache_);
}

void MergeReplay::attend(MergeStep& result) {
  const CacheRowErrors rows = errors_.of(cache_);
  reference::AttentionErrors errors = reference::attention_errors(
      queries_, cache_.keys, cache_.values, layer_.scale, cache_.votes, arithmetic_, rows.view());
  result.output =
      eviction_
          ? eviction_->attend(queries_, cache_)
          : reference::attention(queries_, cache_.keys, cache_.values, layer_.scale, cache_.votes).output;
  result.certain = certain_;
  if (eviction_) {
    if (eviction_->is_scored()) take_in(errors.weights);
    merging_->observe(queries_, cache_, newest_ + 1);
    errors_.observe(queries_, cache_, newest_ + 1, errors);
    if (std::holds_alternative<Cam>(policy_.merge)) {
      attention_ = mean_attention(queries_, cache_.keys, layer_.scale, rows.keys, arithmetic_);
    }
  }
  result.errors = std::move(errors.output);
}

// Running scores of attention; of others nothing is known.
void MergeReplay::take_in(const Matrix& weight_errors) {
  const bool adds_up = std::holds_alternative<H2o>(policy_.host);
  const MatrixView scores = eviction_->head_scores();
  for (int64_t h = 0; h < group_size_; ++h) {
    for (int64_t entry = 0; entry < cache_.entries(); ++entry) {
      double& error = running_errors_(h, cache_.positions[static_cast<size_t>(entry)]);
      const double own = weight_errors(h, entry);
      error = adds_up ? reference::running_sum_error(scores(h, entry), error, own, arithmetic_) : own;
    }
  }
}

// Who leaves, and what becomes of it.
void MergeReplay::choose(int64_t t, const ClaimedStep& claimed, MergeStep& result) {
  result.left = judge_left({{t, g_}, newest_, budget_, rules_, cache_, *eviction_}, claimed.left);
  if (result.left.forced == kNobody) {
    result.into = {kNobodyLeft};
    if (claimed.into && *claimed.into != kNobodyLeft) {
      result.into.offence = wrong_choice({t, g_}, *claimed.into, kNobodyLeft, "nobody left");
    }
    return;
  }
  const int64_t leaving = index_of(cache_.positions, result.left.forced);
  result.into = judge_into(t, leaving, claimed.into);
  merge(leaving, result.into.forced);
  eviction_->leave(leaving);
  merging_->leave(leaving);
  errors_.forget(result.left.forced);
  cache_.remove(leaving);
}

Choice MergeReplay::judge_left(const Departure& departure, const std::optional<int64_t>& claimed) const {
  const int64_t own = departure.own();
  if (!claimed) return {own, false};
  if (*claimed == own) return {own};
  if (const std::optional<Choice> unscored = judge_unscored(departure, *claimed)) return *unscored;
  const bool by_attention = std::holds_alternative<AttentionScore>(policy_.score) &&
                            !std::holds_alternative<Critical>(policy_.selection);
  if (!by_attention || !certain_) return {*claimed, false, false, true};
  return judge_by_scores(departure, *claimed);
}

Choice MergeReplay::judge_by_scores(const Departure& departure, int64_t claimed) const {
  const Positions entries = departure.candidates(), positions = departure.positions_of(entries);
  const Matrix own = columns_of(eviction_->head_scores(), entries),
               off = columns_of(running_errors_, positions);
  const Matrix scores = reference::group_mean(own, group_size_);
  const Matrix errors = reference::group_mean_errors(own, off, group_size_, arithmetic_);
  const std::optional<Fault> fault =
      top_k_fault({scores.row(0), errors.row(0)}, Departure::staying(positions, claimed));
  return judge_scored(departure, claimed, positions, fault);
}

Choice MergeReplay::judge_into(int64_t t, int64_t leaving, const std::optional<int64_t>& claimed) {
  const LeavingEntry entry{{t, g_}, leaving, cache_, errors_, arithmetic_, certain_};
  const auto* cam = std::get_if<Cam>(&policy_.merge);
  const TargetJudgement judgement = cam ? judge_spread(entry, *cam, attention_, claimed)
                                        : judge_target(entry, *reference::target_of(policy_.merge), claimed);
  certain_ = judgement.certain;
  return judgement.choice;
}

reference::ClusterMembers MergeReplay::members_at(const Positions& positions) const {
  reference::ClusterMembers members;
  for (const int64_t position : positions) {
    const int64_t entry = index_of(cache_.positions, position);
    members.keys.append_row(cache_.keys.row(entry));
    members.values.append_row(cache_.values.row(entry));
    members.votes.push_back(cache_.votes.empty() ? 1 : cache_.votes[static_cast<size_t>(entry)]);
  }
  return members;
}

// Merges as chosen, and says how far what comes of it may be off.
void MergeReplay::merge(int64_t leaving, int64_t into) {
  if (const auto* cam = std::get_if<Cam>(&policy_.merge)) return spread(*cam, leaving, into);
  if (into == kNobody) return;
  const Positions positions{into, cache_.positions[static_cast<size_t>(leaving)]};
  reference::ClusterMembers members = members_at(positions);
  const MergingCache before{queries_, merging_->predicted(), cache_.votes, cache_.positions};
  const reference::HeadMerging::Departure departure = merging_->merge(leaving, queries_, cache_, into);
  for (const int64_t entry : departure.changed) eviction_->revalue(entry, cache_);
  if (departure.record.clusters.empty()) return;
  members.log_scores = departure.record.clusters.front().log_scores;
  errors_.put(into, errors_.merged(before, members, positions));
}

void MergeReplay::spread(const Cam& cam, int64_t leaving, int64_t into) {
  const int64_t position = cache_.positions[static_cast<size_t>(leaving)];
  const Positions entries = reference::following_entries(cache_.positions, position, cam.neighbours);
  if (into != kNobody) {
    const VectorView value = cache_.values.row(leaving);
    const std::vector<double> off = errors_.stored_value(position, value);
    for (const int64_t entry : entries) {
      errors_.add_spread(cache_.positions[static_cast<size_t>(entry)], cache_.values.row(entry), value, off,
                         static_cast<int64_t>(entries.size()));
    }
  }
  const reference::HeadMerging::Departure departure = merging_->merge(leaving, queries_, cache_, into);
  for (const int64_t entry : departure.changed) eviction_->revalue(entry, cache_);
}

}  // namespace kvbound::sim
