#include "merge_agreement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <variant>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/critical_kv.hpp>
#include <kvbound/reference/head_merging.hpp>
#include <kvbound/reference/cam.hpp>
#include <kvbound/reference/merge_baselines.hpp>
#include <kvbound/reference/merge_group_errors.hpp>
#include <kvbound/reference/nearest_key.hpp>
#include <kvbound/reference/obcache_errors.hpp>
#include <kvbound/reference/parallel.hpp>
#include <kvbound/reference/perturbation_errors.hpp>
#include <kvbound/reference/session.hpp>
#include <kvbound/reference/snap_kv.hpp>

#include "near_tie.hpp"
#include "target_doubt.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;
using reference::Arithmetic;
using reference::HeadCache;
using reference::HeadMerging;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kNobody = -1, kNobodyLeft = -2;

int64_t index_of(const Positions& positions, int64_t position) {
  const auto found = std::ranges::find(positions, position);
  return found == positions.end() ? -1 : found - positions.begin();
}

Matrix columns_of(MatrixView all, std::span<const int64_t> columns) {
  Matrix result(all.rows, static_cast<int64_t>(columns.size()));
  for (int64_t h = 0; h < all.rows; ++h) {
    for (size_t i = 0; i < columns.size(); ++i) result(h, static_cast<int64_t>(i)) = all(h, columns[i]);
  }
  return result;
}

double largest_size(MatrixView numbers) {
  double result = 0;
  for (int64_t i = 0; i < numbers.rows; ++i) {
    for (const double number : numbers.row(i)) result = std::max(result, std::abs(number));
  }
  return result;
}

// What one choice of a step is worth.
struct Choice {
  int64_t forced = kNobody;  // what is taken for chosen from now on
  bool judged = true;        // whether some other choice would have been a fault
  bool near_tie = false;     // it is not the reference's, but legal
  bool undecided = false;    // nothing tells whether it is
  std::optional<Offender> offence;
};

struct StepJudgement {
  Matrix output, errors;  // [group_size, head_dim]
  bool certain = true;
  bool rebuilt = false;
  Positions positions;  // of the cache that the queries found, ascending, after a rebuild
  Choice left, into;
};

// How far a merged entry's numbers may be off.
struct EntryErrors {
  std::vector<double> key, value;
};

// What the KV heads of a layer have in common.
struct LayerPart {
  const traces::Layer& layer;
  const Claimant& claimant;
  const PromptRecord& reference;
  const PromptErrors& errors;
  LayerView prompt;
  std::optional<PredictedScores> prediction;
  const std::vector<reference::ScoreEma>* averages = nullptr;  // after the prompt, of methods that average
  Matrix log_sum_exp_errors;                                   // [query_heads, window_queries], likewise
  std::vector<StepRecord> rebuilds;                            // [steps], of policies that rebuild
};

// One KV head's cache as the claimant's choices make it, with bounds on how far the claimant's numbers may be off.
class HeadMergeReplay {
 public:
  HeadMergeReplay(const LayerPart& part, int64_t kv_head, const Positions& kept, bool explained)
      : part_(part),
        layer_(part.layer),
        policy_(part.claimant.policy),
        arithmetic_(part.claimant.arithmetic.attention),
        g_(kv_head),
        group_size_(layer_.shape.group_size()),
        budget_(part.claimant.budget(kv_head)),
        rules_(rules_of(policy_.host, layer_.prompt_tokens, budget_)),
        log_errors_(group_size_, layer_.keys.view().rows) {
    const reference::MergeTargets targets = prompt_targets(kept, explained);
    if (part.prediction) take_prompt_score_errors();
    fill(part.prompt, targets, part.averages ? &(*part.averages)[static_cast<size_t>(g_)] : nullptr);
    if (evicts(policy_.host))
      begin_evicting(part.prompt, group(part.errors.ranking.head_scores), part.errors.head_score);
  }

  // After the prompt, by ascending positions.
  const HeadMerge& merged() const { return merged_; }
  const std::vector<MemberRange>& members() const { return members_; }
  bool certain() const { return certain_; }
  bool is_certain(size_t entry) const { return members_[entry].least == members_[entry].most; }
  // Of the numbers as they are stored.
  std::vector<double> key_errors(size_t entry) const {
    return stored(merged_.keys.row(static_cast<int64_t>(entry)), errors_of(merged_.positions[entry]).key);
  }
  std::vector<double> value_errors(size_t entry) const {
    return stored(merged_.values.row(static_cast<int64_t>(entry)), errors_of(merged_.positions[entry]).value);
  }

  // claimed: nothing if nothing is
  StepJudgement step(int64_t t, std::optional<int64_t> left, std::optional<int64_t> into) {
    newest_ = layer_.prompt_tokens + t;
    queries_ = layer_.step(t).queries.middle_rows(g_ * group_size_, group_size_);
    StepJudgement result;
    const auto* keep_kv = std::get_if<KeepKv>(&policy_.merge);
    result.rebuilt = keep_kv && keep_kv->period && (t + 1) % *keep_kv->period == 0;
    if (result.rebuilt) {
      rebuild(t);
      result.positions = merged_.positions;
    } else {
      enter(t);
    }
    attend(result);
    if (eviction_) {
      choose(t, left, into, result);
    }
    return result;
  }

 private:
  MatrixView group(MatrixView rows) const {
    return rows.rows > 0 ? rows.middle_rows(g_ * group_size_, group_size_) : MatrixView();
  }
  std::vector<double> stored(VectorView numbers, VectorView errors) const {
    std::vector<double> all = storage_errors(numbers, arithmetic_);
    for (size_t c = 0; c < errors.size(); ++c) all[c] += errors[c];
    return all;
  }
  EntryErrors errors_of(int64_t position) const {
    const auto found = entry_errors_.find(position);
    const auto head_dim = static_cast<size_t>(layer_.shape.head_dim);
    return found != entry_errors_.end()
               ? found->second
               : EntryErrors{std::vector<double>(head_dim), std::vector<double>(head_dim)};
  }

  // Who goes to whom by the reference, and who may go where. explained: the kept set is one whose groups are known.
  reference::MergeTargets prompt_targets(const Positions& kept, bool explained) {
    members_.assign(kept.size(), {});
    const std::optional<SimilarTarget> target = reference::target_of(policy_.merge);
    if (!target) return {kept, {}};  // CaM's draws: spread_errors
    const auto* keep_kv = std::get_if<KeepKv>(&policy_.merge);
    if (keep_kv && keep_kv->order == MergeOrder::merge_first) {
      certain_ = false;
      for (MemberRange& range : members_) range.most = layer_.prompt_tokens;
      if (!explained) return {kept, {}};
      const reference::Ranking& ranking = part_.errors.ranking;
      return reference::merge_first(part_.prompt.keys.slice(g_), ranking.first_candidate,
                                    ranking.candidate_scores(ranking.scores, g_), ranking.always_kept,
                                    budget_ - static_cast<int64_t>(ranking.always_kept.size()), *target);
    }
    members_ = member_ranges(part_.prompt.keys.slice(g_), kept, *target, arithmetic_);
    for (const MemberRange& range : members_) certain_ = certain_ && range.least == range.most;
    return reference::evict_first(part_.prompt.keys.slice(g_), kept, *target);
  }

  // How far the logarithms of predicted scores may be off after the prompt.
  void take_prompt_score_errors() {
    const LayerView& prompt = part_.prompt;
    const bool averaged = part_.prediction->predict == Prediction::ema;
    const int64_t first = averaged ? 0 : prompt.window_queries() - 1;
    constexpr int64_t kQueries = 32;  // at a time
    for (int64_t i = 0; i < group_size_; ++i) {
      const int64_t head = g_ * group_size_ + i;
      double largest = 0;
      for (int64_t q = first; q < prompt.window_queries(); q += kQueries) {
        const int64_t count = std::min(kQueries, prompt.window_queries() - q);
        const MatrixView queries = prompt.queries.slice(head).middle_rows(q, count);
        const Matrix logits = reference::attention_logits(queries, prompt.keys.slice(g_), layer_.scale);
        const Matrix off = reference::logit_errors(queries, prompt.keys.slice(g_), layer_.scale, arithmetic_);
        largest = std::max(largest, largest_size(logits));
        for (int64_t row = 0; row < count; ++row)
          take_score_errors(i, off.row(row), sum_error(head, q + row));
      }
      if (!averaged) continue;
      const double average =
          reference::score_ema_error(prompt.window_queries(), part_.prediction->ema,
                                     largest_score(largest, layer_.prompt_tokens), arithmetic_);
      for (double& error : log_errors_.row(i).first(static_cast<size_t>(layer_.prompt_tokens)))
        error += average;
    }
  }

  // No |ln s| is larger if no logit is.
  static double largest_score(double largest_logit, int64_t tokens) {
    return 2 * largest_logit + std::log(static_cast<double>(tokens));
  }
  bool is_normalised() const {
    return part_.prediction->predict == Prediction::ema && part_.prediction->scores == ScoreKind::attention;
  }
  double sum_error(int64_t head, int64_t query) const {
    return is_normalised() ? part_.log_sum_exp_errors(head, query) : 0;
  }
  // ln s = z - LSE of these entries, or z.
  void take_score_errors(int64_t head, VectorView logit_errors, double sum) {
    const std::span<double> errors = log_errors_.row(head);
    for (size_t j = 0; j < logit_errors.size(); ++j) errors[j] = std::max(errors[j], logit_errors[j] + sum);
  }

  // A cache of those who stay, merged with those who do not.
  //
  // view  ends with the queries that merge
  void fill(const LayerView& view, const reference::MergeTargets& targets, const reference::ScoreEma* known) {
    cache_ = {};
    entry_errors_.clear();
    for (const int64_t position : targets.kept) {
      cache_.append(position, layer_.keys.slice(g_).row(position), layer_.values.slice(g_).row(position));
    }
    merging_.emplace(policy_.merge, view, g_);
    merged_ = merging_->compress(view, targets, known, cache_);
    if (const auto* cam = std::get_if<Cam>(&policy_.merge)) return take_spread_errors(*cam, view);
    if (merged_.groups.empty()) return;
    const MatrixView queries = last_queries(view);
    Denominators denominators;
    if (part_.prediction) {
      const Matrix scores = known ? known->log_predicted(view.prompt_tokens())
                                  : reference::attention_logits(queries, view.keys.slice(g_), layer_.scale);
      Positions all(static_cast<size_t>(view.prompt_tokens()));
      std::iota(all.begin(), all.end(), 0);
      denominators = denominators_of(scores, {}, all);
    }
    std::map<int64_t, reference::MergedEntryErrors> found;
    for (const MergeGroup& merged : merged_.groups) {
      Positions positions{merged.into};
      positions.insert(positions.end(), merged.from.begin(), merged.from.end());
      reference::GroupMembers members;
      for (const int64_t position : positions) {
        members.keys.append_row(layer_.keys.slice(g_).row(position));
        members.values.append_row(layer_.values.slice(g_).row(position));
        members.votes.push_back(1);
      }
      members.log_scores = merged.log_scores;
      found[merged.into] = merge_errors(queries, members, positions, denominators);
    }
    for (auto& [into, errors] : found) put(into, std::move(errors));
  }

  MatrixView last_queries(const LayerView& view) const {
    return group(view.queries.row_of_slices(view.window_queries() - 1));
  }

  // ln D_h and how far they may be off.
  struct Denominators {
    std::vector<double> values, errors;
  };
  Denominators denominators_of(const Matrix& log_scores, VectorView votes, const Positions& positions) const {
    Denominators result;
    for (int64_t h = 0; h < log_scores.rows(); ++h) {
      std::vector<double> logits(log_scores.row(h).begin(), log_scores.row(h).end());
      double off = 0, size = 0;
      for (size_t j = 0; j < logits.size(); ++j) {
        if (!votes.empty()) logits[j] += std::log(votes[j]);
        off = std::max(off, log_errors_(h, positions[j]));
        if (std::isfinite(logits[j])) size = std::max(size, std::abs(logits[j]));
      }
      const auto count = static_cast<double>(logits.size());
      result.values.push_back(reference::log_sum_exp(logits));
      result.errors.push_back(off +
                              reference::sum_rounding(static_cast<int64_t>(logits.size()) + 8, arithmetic_) +
                              8 * (arithmetic_.exponential + 0x1p-51) * (1 + size + std::log(count)));
    }
    return result;
  }

  reference::MemberErrors member_errors(const reference::GroupMembers& members,
                                        const Positions& positions) const {
    reference::MemberErrors errors;
    for (size_t j = 0; j < positions.size(); ++j) {
      const EntryErrors own = errors_of(positions[j]);
      errors.keys.append_row(stored(members.keys.row(static_cast<int64_t>(j)), own.key));
      errors.values.append_row(stored(members.values.row(static_cast<int64_t>(j)), own.value));
    }
    errors.log_scores = columns_of(log_errors_, positions);
    return errors;
  }

  reference::MergedEntryErrors merge_errors(MatrixView queries, const reference::GroupMembers& members,
                                            const Positions& positions,
                                            const Denominators& denominators) const {
    const reference::MemberErrors errors = member_errors(members, positions);
    if (std::holds_alternative<D2o>(policy_.merge)) {
      return reference::similarity_mean_errors(members, errors, arithmetic_);
    }
    if (std::holds_alternative<KvMerger>(policy_.merge)) {
      return reference::gaussian_mean_errors(members, errors, arithmetic_);
    }
    reference::MergeErrorsCase given;
    if (const auto* keep_kv = std::get_if<KeepKv>(&policy_.merge)) {
      given.rule = {keep_kv->key, keep_kv->gqa, keep_kv->rank};
    } else {
      given.rule = {MergedKey::convex, std::get<ConvexMerge>(policy_.merge).gqa, 0};
    }
    given.queries = queries;
    given.scale = layer_.scale;
    given.log_denominators = denominators.values;
    given.denominator_errors = denominators.errors;
    return reference::merge_group_errors(given, members, errors, arithmetic_);
  }

  void put(int64_t into, reference::MergedEntryErrors errors) {
    for (size_t h = 0; h < errors.log_scores.size(); ++h) {
      log_errors_(static_cast<int64_t>(h), into) = errors.log_scores[h];
    }
    entry_errors_[into] = {std::move(errors.key), std::move(errors.value)};
  }

  // CaM: attention as it weighs the draws, and how far it may be off.
  struct MeanAttention {
    std::vector<double> weights, errors;
  };
  MeanAttention mean_attention(MatrixView queries, MatrixView keys, MatrixView key_errors) const {
    const Matrix weights = reference::attention_weights(queries, keys, layer_.scale, keys.rows - 1);
    const Matrix off =
        reference::attention_errors(queries, keys, keys, layer_.scale, {}, arithmetic_, {key_errors, {}})
            .weights;
    const Matrix mean = reference::group_mean(weights, group_size_);
    const Matrix mean_off = reference::group_mean_errors(weights, off, group_size_, arithmetic_);
    return {{mean.row(0).begin(), mean.row(0).end()}, {mean_off.row(0).begin(), mean_off.row(0).end()}};
  }

  // Whether an entry is spread over others may be decided by rounding.
  struct Draw {
    bool may = false, may_not = true;
  };
  Draw draw(const Cam& cam, const MeanAttention& attention, int64_t entry, const Positions& following,
            int64_t position) const {
    if (following.empty()) return {};
    double sum = 0, off = 0;
    for (const int64_t other : following) {
      sum += attention.weights[static_cast<size_t>(other)];
      off += attention.errors[static_cast<size_t>(other)];
    }
    const auto count = static_cast<double>(following.size());
    const double weight = attention.weights[static_cast<size_t>(entry)],
                 weight_off = attention.errors[static_cast<size_t>(entry)];
    const double rounding = reference::sum_rounding(static_cast<int64_t>(following.size()) + 8, arithmetic_);
    const auto probability = [&](double one, double all, double share) {
      if (one <= 0) return 0.0;
      return all <= 0 ? 1.0 : std::min(1.0, one * count / all * (1 + share));
    };
    const double least = probability(weight - weight_off, sum + off, -rounding);
    const double most = probability(weight + weight_off, sum - off, rounding);
    return {reference::spreads(most, cam.seed, g_, position),
            !reference::spreads(least, cam.seed, g_, position)};
  }

  // What is added to the values that follow, each time rounded.
  void add_spread_errors(const Positions& following, VectorView value, VectorView value_errors) {
    const double share = 1 / static_cast<double>(following.size());
    const double u = 4 * (arithmetic_.unit + 0x1p-53);
    for (const int64_t entry : following) {
      const int64_t position = cache_.positions[static_cast<size_t>(entry)];
      EntryErrors errors = errors_of(position);
      const VectorView own = cache_.values.row(entry);
      for (size_t c = 0; c < errors.value.size(); ++c) {
        errors.value[c] += share * value_errors[c] +
                           u * (std::abs(own[c]) + 2 * share * std::abs(value[c]) + errors.value[c]);
      }
      entry_errors_[position] = std::move(errors);
    }
  }

  // After the prompt; the cache's values are merged already, which differs from values on the way by no more than they.
  void take_spread_errors(const Cam& cam, const LayerView& view) {
    const MatrixView keys = view.keys.slice(g_), values = view.values.slice(g_);
    const MeanAttention attention = mean_attention(last_queries(view), keys, {});
    std::vector<double> sizes;
    for (int64_t position = 0; position < view.prompt_tokens(); ++position) {
      const auto next = std::ranges::lower_bound(cache_.positions, position);
      if (next != cache_.positions.end() && *next == position) continue;
      const auto behind = cache_.positions.end() - next;
      const Positions following(next, next + std::min<std::ptrdiff_t>(behind, cam.neighbours));
      const Draw drawn = draw(cam, attention, position, following, position);
      if (!drawn.may) continue;
      Positions entries(following.size());
      std::iota(entries.begin(), entries.end(), next - cache_.positions.begin());
      if (drawn.may_not) {
        certain_ = false;
        for (const int64_t entry : entries) ++members_[static_cast<size_t>(entry)].most;
      }
      add_spread_errors(entries, values.row(position), storage_errors(values.row(position), arithmetic_));
      for (const int64_t entry : entries)
        add_way(entry, values.row(position), static_cast<double>(entries.size()));
    }
  }
  // A value on its way to the sum may have been larger than the sum is.
  void add_way(int64_t entry, VectorView value, double count) {
    EntryErrors& errors = entry_errors_[cache_.positions[static_cast<size_t>(entry)]];
    const double u = 4 * (arithmetic_.unit + 0x1p-53) * static_cast<double>(layer_.prompt_tokens);
    for (size_t c = 0; c < errors.value.size(); ++c) errors.value[c] += u * std::abs(value[c]) / count;
  }

  void begin_evicting(const LayerView& view, MatrixView head_scores, const Matrix& head_errors) {
    Matrix norms;
    if (const auto* critical = std::get_if<Critical>(&policy_.selection)) {
      norms = Matrix(group_size_, cache_.entries());
      for (int64_t i = 0; i < group_size_; ++i) {
        std::ranges::copy(reference::projected_value_norms(
                              cache_.values, view.head_projection(g_ * group_size_ + i), critical->norm),
                          norms.row(i).begin());
      }
    }
    eviction_.emplace(view, policy_, g_, budget_, head_scores, norms, cache_);
    running_errors_ = Matrix(group_size_, layer_.keys.view().rows);
    if (head_errors.rows() == 0) return;
    for (int64_t h = 0; h < group_size_; ++h) {
      std::ranges::copy(head_errors.row(g_ * group_size_ + h), running_errors_.row(h).begin());
    }
  }

  // The layer as if its prompt went on to this step.
  LayerView view_at(int64_t t) const {
    LayerView view = part_.prompt;
    const int64_t tokens = layer_.prompt_tokens + t + 1;
    view.keys = layer_.keys.view().middle_rows(0, tokens);
    view.values = layer_.values.view().middle_rows(0, tokens);
    view.queries = layer_.queries.view().middle_rows(part_.prompt.window_queries() + t, 1);
    return view;
  }

  // The reference's own selection, which no choice of before has a part in.
  void rebuild(int64_t t) {
    certain_ = false;
    const HeadMerge& record = part_.rebuilds[static_cast<size_t>(t)].merges[static_cast<size_t>(g_)];
    const LayerView view = view_at(t);
    log_errors_ = Matrix(group_size_, layer_.keys.view().rows);
    const Matrix off = reference::logit_errors(queries_, view.keys.slice(g_), layer_.scale, arithmetic_);
    for (int64_t h = 0; h < group_size_; ++h) std::ranges::copy(off.row(h), log_errors_.row(h).begin());
    reference::MergeTargets targets{record.positions, record.groups};
    fill(view, targets, nullptr);
    if (!eviction_) return;
    begin_evicting(view, Matrix(group_size_, view.prompt_tokens()), {});
  }

  void enter(int64_t t) {
    const StepView view = layer_.step(t);
    cache_.append(newest_, view.keys.row(g_), view.values.row(g_));
    if (!eviction_) return;
    eviction_->enter(cache_);
    merging_->enter(cache_);
  }

  struct CacheRows {
    Matrix keys, values;
    reference::CacheErrors view() const { return {keys, values}; }
  };
  CacheRows cache_errors() const {
    CacheRows rows;
    for (const int64_t position : cache_.positions) {
      const EntryErrors errors = errors_of(position);
      rows.keys.append_row(errors.key);
      rows.values.append_row(errors.value);
    }
    return rows;
  }

  void attend(StepJudgement& result) {
    const CacheRows rows = cache_errors();
    reference::AttentionErrors errors = reference::attention_errors(
        queries_, cache_.keys, cache_.values, layer_.scale, cache_.votes, arithmetic_, rows.view());
    result.output =
        eviction_
            ? eviction_->attend(queries_, cache_)
            : reference::attention(queries_, cache_.keys, cache_.values, layer_.scale, cache_.votes).output;
    result.errors = std::move(errors.output);
    result.certain = certain_;
    if (!eviction_) return;
    if (eviction_->is_scored()) take_in(errors.weights);
    merging_->observe(queries_, cache_, newest_ + 1);
    if (part_.prediction) observe_errors(errors);
    if (const auto* cam = std::get_if<Cam>(&policy_.merge); cam) {
      attention_ = mean_attention(queries_, cache_.keys, rows.keys);
    }
  }

  // Running scores of attention; of others nothing is known.
  void take_in(const Matrix& weight_errors) {
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

  // Predicted scores take in this step's.
  void observe_errors(const reference::AttentionErrors& errors) {
    const bool averaged = part_.prediction->predict == Prediction::ema;
    const Matrix logits = reference::attention_logits(queries_, cache_.keys, layer_.scale);
    const double rounding =
        averaged ? reference::score_ema_error(1, part_.prediction->ema,
                                              largest_score(largest_size(logits), newest_ + 1), arithmetic_)
                 : 0;
    for (int64_t h = 0; h < group_size_; ++h) {
      const double sum = is_normalised() ? errors.log_sum_exp[static_cast<size_t>(h)] : 0;
      for (int64_t entry = 0; entry < cache_.entries(); ++entry) {
        double& error = log_errors_(h, cache_.positions[static_cast<size_t>(entry)]);
        const double own = errors.logits(h, entry) + sum;
        error = averaged ? std::max(error, own) + rounding : own;
      }
    }
  }

  int64_t position_of(int64_t entry) const { return cache_.positions[static_cast<size_t>(entry)]; }

  // Who leaves, and what becomes of it.
  void choose(int64_t t, std::optional<int64_t> left, std::optional<int64_t> into, StepJudgement& result) {
    result.left = judge_left(t, left);
    if (result.left.forced == kNobody) {
      result.into = {kNobodyLeft, true, false, false, {}};
      if (into && *into != kNobodyLeft) {
        result.into.offence = offence(t, *into, kNobodyLeft, "nobody left");
      }
      return;
    }
    const int64_t leaving = index_of(cache_.positions, result.left.forced);
    result.into = judge_into(t, leaving, into);
    merge(leaving, result.into.forced);
    eviction_->leave(leaving);
    merging_->leave(leaving);
    entry_errors_.erase(result.left.forced);
    cache_.remove(leaving);
  }

  Offender offence(int64_t t, int64_t claimed, int64_t expected, const std::string& note,
                   double error = kInfinity, double bound = 0) const {
    return {{t, g_},
            static_cast<double>(claimed),
            static_cast<double>(expected),
            error,
            bound,
            Dtype::i64,
            fmt::format("step {}, KV head {}: {}", t, g_, note)};
  }

  Choice judge_left(int64_t t, const std::optional<int64_t>& claimed) const {
    const std::optional<int64_t> entry = eviction_->who_leaves(cache_, newest_);
    const int64_t own = entry ? position_of(*entry) : kNobody;
    if (!claimed) return {own, false, false, false, {}};
    if (*claimed == own) return {own, true, false, false, {}};
    const auto wrong = [&](int64_t forced, const std::string& note) {
      return Choice{forced, true, false, false, offence(t, *claimed, own, note)};
    };
    const std::string sizes =
        fmt::format("the cache has {} entries and the budget is {}", cache_.entries(), budget_);
    if (*claimed == kNobody) return wrong(own, fmt::format("nobody left, but {}", sizes));
    if (index_of(cache_.positions, *claimed) < 0) {
      return wrong(own, fmt::format("position {} left, which is not in the cache", *claimed));
    }
    if (own == kNobody) return wrong(own, fmt::format("position {} left, but {}", *claimed, sizes));
    if (rules_.always_keeps(*claimed, newest_)) {
      return wrong(*claimed, fmt::format("position {} left, which always stays", *claimed));
    }
    if (!eviction_->is_scored()) {
      return wrong(*claimed, fmt::format("position {} left rather than {}", *claimed, own));
    }
    const bool by_attention = std::holds_alternative<AttentionScore>(policy_.score) &&
                              !std::holds_alternative<Critical>(policy_.selection);
    if (!by_attention || !certain_) return {*claimed, false, false, true, {}};
    return judge_by_scores(t, *claimed);
  }

  Choice judge_by_scores(int64_t t, int64_t claimed) const {
    Positions entries;
    for (int64_t entry = 0; entry < cache_.entries(); ++entry) {
      if (!rules_.always_keeps(position_of(entry), newest_)) entries.push_back(entry);
    }
    std::ranges::sort(entries, {}, [&](int64_t entry) { return position_of(entry); });
    Positions positions;
    for (const int64_t entry : entries) positions.push_back(position_of(entry));
    const Matrix own = columns_of(eviction_->head_scores(), entries),
                 off = columns_of(running_errors_, positions);
    const Matrix scores = reference::group_mean(own, group_size_);
    const Matrix errors = reference::group_mean_errors(own, off, group_size_, arithmetic_);
    Positions staying(positions.size());
    std::iota(staying.begin(), staying.end(), 0);
    staying.erase(staying.begin() + index_of(positions, claimed));
    const std::optional<Fault> found = top_k_fault({scores.row(0), errors.row(0)}, staying);
    if (!found) return {claimed, true, true, false, {}};
    const int64_t better = positions[static_cast<size_t>(found->better)],
                  chosen = positions[static_cast<size_t>(found->chosen)];
    const std::string note = fmt::format(
        "position {} stayed rather than {}, by {}: {:.9g} against {:.9g}, which are {:.3g} apart; both error "
        "bounds "
        "together are {:.3g}",
        chosen, better, found->by, found->chosen_score, found->better_score, std::abs(found->excess()),
        found->band);
    return {claimed, true, false, false,
            offence(t, claimed, chosen, note, std::abs(found->excess()), found->band)};
  }

  Choice judge_into(int64_t t, int64_t leaving, const std::optional<int64_t>& claimed) {
    if (std::holds_alternative<Cam>(policy_.merge)) return judge_spread(t, leaving, claimed);
    std::vector<double> cosines, errors;
    Positions others;
    const EntryErrors own_errors = errors_of(position_of(leaving));
    const std::vector<double> off = stored(cache_.keys.row(leaving), own_errors.key);
    const std::vector<double> norms = reference::key_norms(cache_.keys);
    for (int64_t entry = 0; entry < cache_.entries(); ++entry) {
      if (entry == leaving) continue;
      others.push_back(position_of(entry));
      cosines.push_back(cosine(leaving, entry));
      errors.push_back(reference::cosine_error(
          cache_.keys.row(leaving), off, cache_.keys.row(entry),
          stored(cache_.keys.row(entry), errors_of(position_of(entry)).key), arithmetic_));
    }
    const SimilarTarget target = *reference::target_of(policy_.merge);
    const reference::NearestKey nearest =
        reference::nearest_key(leaving, cache_.keys, norms, cache_.positions);
    const bool merges = nearest.index >= 0 && reference::is_similar(nearest.cosine, target);
    const int64_t own = merges ? position_of(nearest.index) : kNobody;
    const TargetRule rule(target, cosines, errors);
    int64_t possible = rule.may_be_dropped() ? 1 : 0;
    for (size_t j = 0; j < others.size(); ++j) possible += rule.may_merge_with(j);
    if (!claimed) {
      certain_ = certain_ && possible == 1;
      return {own, false, false, false, {}};
    }
    if (*claimed == own) return {own, true, false, false, {}};
    const int64_t at = index_of(others, *claimed);
    if (*claimed != kNobody && at < 0) {
      return {own, true, false, false,
              offence(t, *claimed, own,
                      fmt::format("position {} merged with {}, which is not in the cache",
                                  position_of(leaving), *claimed))};
    }
    const bool legal = at < 0 ? rule.may_be_dropped() : rule.may_merge_with(static_cast<size_t>(at));
    if (legal) return {*claimed, true, true, false, {}};
    if (!certain_) return {*claimed, false, false, true, {}};
    const std::string what = at < 0 ? "was dropped" : fmt::format("merged with {}", *claimed);
    const std::string rather = own == kNobody ? "being dropped" : fmt::format("merging with {}", own);
    return {*claimed, true, false, false,
            offence(t, *claimed, own,
                    fmt::format("position {} {} rather than {}: the largest cosine is {:.9g}, its own {:.9g}",
                                position_of(leaving), what, rather, nearest.cosine,
                                at < 0 ? std::nan("") : cosines[static_cast<size_t>(at)]))};
  }

  double cosine(int64_t entry, int64_t other) const {
    Matrix pair(0, cache_.keys.cols());
    pair.append_row(cache_.keys.row(entry));
    pair.append_row(cache_.keys.row(other));
    return reference::nearest_key(0, pair, reference::key_norms(pair), Positions{0, 1}).cosine;
  }

  Positions following(int64_t leaving, int64_t neighbours) const {
    Positions entries;
    for (int64_t entry = 0; entry < cache_.entries(); ++entry) {
      if (position_of(entry) > position_of(leaving)) entries.push_back(entry);
    }
    std::ranges::sort(entries, {}, [&](int64_t entry) { return position_of(entry); });
    entries.resize(std::min(entries.size(), static_cast<size_t>(neighbours)));
    return entries;
  }

  Choice judge_spread(int64_t t, int64_t leaving, const std::optional<int64_t>& claimed) {
    const Cam& cam = std::get<Cam>(policy_.merge);
    const Positions entries = following(leaving, cam.neighbours);
    const int64_t first = entries.empty() ? kNobody : position_of(entries.front());
    const Draw drawn = draw(cam, attention_, leaving, entries, position_of(leaving));
    const int64_t own = drawn.may && first != kNobody ? first : kNobody;
    if (!claimed) {
      certain_ = certain_ && !(drawn.may && drawn.may_not);
      return {own, false, false, false, {}};
    }
    const bool legal = (*claimed == kNobody && drawn.may_not) || (*claimed == first && drawn.may);
    if (legal) return {*claimed, true, drawn.may && drawn.may_not, false, {}};
    if (!certain_) return {own, false, false, true, {}};
    return {own, true, false, false,
            offence(t, *claimed, own,
                    fmt::format("the value of position {} {}", position_of(leaving),
                                own == kNobody ? "is spread over nobody"
                                               : fmt::format("is spread from {} on", own)))};
  }

  // Merges as chosen, and says how far what comes of it may be off.
  void merge(int64_t leaving, int64_t into) {
    if (const auto* cam = std::get_if<Cam>(&policy_.merge)) {
      const Positions entries = following(leaving, cam->neighbours);
      if (into != kNobody && !entries.empty()) {
        const EntryErrors own = errors_of(position_of(leaving));
        add_spread_errors(entries, cache_.values.row(leaving), stored(cache_.values.row(leaving), own.value));
      }
      const HeadMerging::Departure departure = merging_->merge(leaving, queries_, cache_, into);
      for (const int64_t entry : departure.changed) eviction_->revalue(entry, cache_);
      return;
    }
    if (into == kNobody) return;
    const Positions positions{into, position_of(leaving)};
    reference::GroupMembers members;
    for (const int64_t position : positions) {
      const int64_t entry = index_of(cache_.positions, position);
      members.keys.append_row(cache_.keys.row(entry));
      members.values.append_row(cache_.values.row(entry));
      members.votes.push_back(cache_.votes.empty() ? 1 : cache_.votes[static_cast<size_t>(entry)]);
    }
    Denominators denominators;
    if (part_.prediction)
      denominators = denominators_of(merging_->predicted(), cache_.votes, cache_.positions);
    const HeadMerging::Departure departure = merging_->merge(leaving, queries_, cache_, into);
    for (const int64_t entry : departure.changed) eviction_->revalue(entry, cache_);
    if (departure.record.groups.empty()) return;
    members.log_scores = departure.record.groups.front().log_scores;
    put(into, merge_errors(queries_, members, positions, denominators));
  }

  const LayerPart& part_;
  const traces::Layer& layer_;
  const Policy& policy_;
  const Arithmetic& arithmetic_;
  const int64_t g_, group_size_, budget_;
  const HostRules rules_;
  bool certain_ = true;
  std::vector<MemberRange> members_;  // [kept]
  HeadMerge merged_;                  // after the prompt, or the last rebuild
  HeadCache cache_;
  std::optional<HeadMerging> merging_;
  std::optional<reference::Eviction> eviction_;
  std::map<int64_t, EntryErrors> entry_errors_;  // by position, of those that are not what entered
  Matrix log_errors_;                            // [group_size, n + T]: of ln s^, by position
  Matrix running_errors_;                        // [group_size, n + T]: of the host's scores, by position
  MeanAttention attention_;                      // the step's, with CaM
  MatrixView queries_;                           // the step's [group_size, head_dim]
  int64_t newest_ = 0;
};

// Choices of all steps as one tensor.
class Tally {
 public:
  explicit Tally(const char* tensor) {
    result_.tensor = tensor;
    result_.near_tie_swaps = 0;
  }
  void add(const Choice& choice) {
    ++result_.elements;
    result_.judged += choice.judged;
    *result_.near_tie_swaps += choice.near_tie;
    result_.undecided += choice.undecided;
    if (!choice.offence) return;
    ++result_.outside;
    if (!result_.worst || result_.worst->share() < choice.offence->share()) result_.worst = choice.offence;
  }
  TensorAgreement result() const { return result_; }

 private:
  TensorAgreement result_;
};

// A tensor of caches after the prompt: expected numbers, bounds, and whether each is certain.
struct Expected {
  std::vector<double> numbers, bounds;
  std::vector<bool> certain;

  void add(VectorView row, VectorView errors, bool sure) {
    numbers.insert(numbers.end(), row.begin(), row.end());
    bounds.insert(bounds.end(), errors.begin(), errors.end());
    certain.insert(certain.end(), row.size(), sure);
  }
};

class MergeJudge {
 public:
  MergeJudge(const LayerPart& part, const std::vector<Positions>& forced, const LayerClaims& claims)
      : part_(part), claims_(claims), shape_(part.layer.shape), steps_(part.claimant.steps) {
    for (size_t g = 0; g < forced.size(); ++g) heads_.push_back(std::nullopt);
    reference::parallel_for(shape_.kv_heads, [&](int64_t g) {
      const auto index = static_cast<size_t>(g);
      heads_[index].emplace(part_, g, forced[index], forced[index] == part_.reference.kept[index]);
    });
    for (size_t g = 0; g < forced.size(); ++g) {
      known_.push_back(!claims.kept || (*claims.kept)[g] == forced[g]);
    }
    result_.record.prompt.kept = forced;
  }

  MergeJudgement judge() {
    if (claims_.votes) judge_votes(*claims_.votes);
    judge_rows("merged_key", claims_.merged_key, &HeadMerge::keys, &HeadMergeReplay::key_errors);
    judge_rows("merged_value", claims_.merged_value, &HeadMerge::values, &HeadMergeReplay::value_errors);
    for (const auto& head : heads_) result_.record.prompt.merges.push_back(head->merged());
    replay();
    return std::move(result_);
  }

 private:
  void judge_votes(const RealClaim& claim) {
    Expected expected;
    size_t at = 0;
    for (size_t g = 0; g < heads_.size(); ++g) {
      for (size_t i = 0; i < claimed_entries(g); ++i, ++at) {
        if (!known_[g]) {
          expected.add(std::vector{0.0}, std::vector{kInfinity}, false);
          continue;
        }
        const MemberRange range = heads_[g]->members()[i];
        const bool votes = std::holds_alternative<KeepKv>(part_.claimant.policy.merge);
        const double vote = claim.numbers[at];
        const bool possible = votes && vote >= 1 + static_cast<double>(range.least) &&
                              vote <= 1 + static_cast<double>(range.most) && vote == std::floor(vote);
        const std::vector<double> own{heads_[g]->merged().votes[i]};
        expected.add(own, std::vector{0.0}, heads_[g]->is_certain(i) || !possible);
      }
    }
    add("votes", claim, expected);
  }

  void judge_rows(const char* tensor, const std::optional<RealClaim>& claim, Matrix HeadMerge::*rows,
                  std::vector<double> (HeadMergeReplay::*errors)(size_t) const) {
    if (!claim) return;
    Expected expected;
    const std::vector<double> nothing(static_cast<size_t>(shape_.head_dim)),
        unbounded(nothing.size(), kInfinity);
    for (size_t g = 0; g < heads_.size(); ++g) {
      for (size_t i = 0; i < claimed_entries(g); ++i) {
        if (!known_[g]) {
          expected.add(nothing, unbounded, false);
          continue;
        }
        expected.add((heads_[g]->merged().*rows).row(static_cast<int64_t>(i)), ((*heads_[g]).*errors)(i),
                     heads_[g]->is_certain(i));
      }
    }
    add(tensor, *claim, expected);
  }

  // As many as the claims have rows for.
  size_t claimed_entries(size_t g) const {
    return claims_.kept ? (*claims_.kept)[g].size() : result_.record.prompt.kept[g].size();
  }

  void add(const char* tensor, const RealClaim& claim, const Expected& expected) {
    result_.agreements.push_back(
        compare_uncertain(tensor, claim, expected.numbers, expected.bounds, expected.certain));
  }

  void replay() {
    const bool dynamic = evicts(part_.claimant.policy.host);
    std::vector<std::vector<StepJudgement>> steps(heads_.size());
    reference::parallel_for(shape_.kv_heads, [&](int64_t g) {
      const auto at = [&](const std::optional<std::vector<int64_t>>& claims, int64_t t) {
        return claims ? std::optional((*claims)[static_cast<size_t>(t * shape_.kv_heads + g)]) : std::nullopt;
      };
      for (int64_t t = 0; t < steps_; ++t) {
        steps[static_cast<size_t>(g)].push_back(
            heads_[static_cast<size_t>(g)]->step(t, at(claims_.left, t), at(claims_.merged_into, t)));
      }
    });
    Tally left("left"), into("merged_into");
    result_.output_errors = Tensor(steps_, shape_.query_heads, shape_.head_dim);
    for (int64_t t = 0; t < steps_; ++t) {
      StepRecord& record = result_.record.steps.emplace_back();
      record.output = Matrix(shape_.query_heads, shape_.head_dim);
      for (int64_t g = 0; g < shape_.kv_heads; ++g) {
        const StepJudgement& step = steps[static_cast<size_t>(g)][static_cast<size_t>(t)];
        for (int64_t i = 0; i < shape_.group_size(); ++i) {
          const int64_t h = g * shape_.group_size() + i;
          std::ranges::copy(step.output.row(i), record.output.row(h).begin());
          std::ranges::copy(step.errors.row(i), result_.output_errors.slice(t).row(h).begin());
        }
        result_.certain.push_back(step.certain);
        record.rebuilt = step.rebuilt;
        if (step.rebuilt) record.merges.emplace_back().positions = step.positions;
        if (!dynamic) continue;
        record.left.push_back(step.left.forced);
        left.add(step.left);
        into.add(step.into);
      }
    }
    if (claims_.left) result_.agreements.push_back(left.result());
    if (claims_.merged_into) result_.agreements.push_back(into.result());
    if (claims_.output) judge_output(*claims_.output);
  }

  void judge_output(const RealClaim& claim) {
    Expected expected;
    for (int64_t t = 0; t < steps_; ++t) {
      const Matrix& output = result_.record.steps[static_cast<size_t>(t)].output;
      for (int64_t h = 0; h < shape_.query_heads; ++h) {
        expected.add(output.row(h), result_.output_errors.slice(t).row(h),
                     result_.certain[static_cast<size_t>(t * shape_.kv_heads + shape_.kv_head_of(h))]);
      }
    }
    add("output", claim, expected);
  }

  const LayerPart& part_;
  const LayerClaims& claims_;
  const LayerShape shape_;
  const int64_t steps_;
  std::vector<std::optional<HeadMergeReplay>> heads_;
  std::vector<bool> known_;  // [kv_heads]: what is claimed of the cache after the prompt is of the forced one
  MergeJudgement result_;
};

// A session's own steps, of which the rebuilt caches are wanted.
std::vector<StepRecord> rebuilds(const traces::Layer& layer, const Claimant& claimant) {
  const auto* keep_kv = std::get_if<KeepKv>(&claimant.policy.merge);
  std::vector<StepRecord> steps;
  if (!keep_kv || !keep_kv->period) return steps;
  Policy policy = claimant.policy;
  policy.allocation = Uniform{};
  std::vector<int64_t> budgets;
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) budgets.push_back(claimant.budget(g));
  const auto session = reference::make_session();
  session->compress(layer.prompt(), policy, budgets);
  for (int64_t t = 0; t < claimant.steps; ++t) steps.push_back(session->step(layer.step(t)));
  return steps;
}

}  // namespace

MergeJudgement judge_merging(const traces::Layer& layer, const Claimant& claimant,
                             const PromptRecord& reference, const PromptErrors& errors,
                             const std::vector<Positions>& forced, const LayerClaims& claims) {
  LayerPart part{layer,
                 claimant,
                 reference,
                 errors,
                 layer.prompt(),
                 reference::prediction_of(claimant.policy.merge),
                 nullptr,
                 {},
                 rebuilds(layer, claimant)};
  reference::LayerScores known(nullptr);
  if (part.prediction && part.prediction->predict == Prediction::ema) {
    part.averages = &known.predicted(part.prompt, *part.prediction);
    part.log_sum_exp_errors = reference::window_log_sum_exp_errors(part.prompt, part.prompt.window_queries(),
                                                                   claimant.arithmetic.attention);
  }
  return MergeJudge(part, forced, claims).judge();
}

}  // namespace kvbound::sim
