#include "evicted_agreement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <variant>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/reference/numerics/parallel.hpp>
#include <kvbound/reference/session/head_cache.hpp>

#include "choice.hpp"
#include "eviction_choice.hpp"
#include "near_tie.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;
using reference::columns_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What a layer's steps have in common; columns are positions, rows query heads.
struct LayerSizes {
  LayerSizes(const traces::Layer& layer, const TestedImplementation& implementation) {
    const Policy& policy = implementation.policy;
    if (reference::change_of(policy.score)) {
      spaces = reference::change_spaces(reference::space_of(policy.score), layer.output_projection,
                                        layer.shape.query_heads);
    }
    if (const auto* critical = std::get_if<Critical>(&policy.selection)) {
      const Matrix norms = reference::projected_value_norms(layer.shape, layer.values,
                                                            layer.output_projection, critical->norm);
      norm_errors = reference::projected_value_norm_errors(layer.shape, layer.values, layer.output_projection,
                                                           critical->norm, norms,
                                                           implementation.arithmetic.projected_value_norms);
    }
  }

  std::vector<reference::ChangeSpace> spaces;  // [query_heads], where changes are scored
  Matrix norm_errors;                          // [query_heads, n + T], with `critical`
};

// One KV head's cache as the tested implementation's choices make it, with the reference's running scores and their
// errors.
class HeadReplay {
 public:
  HeadReplay(const traces::Layer& layer, const TestedImplementation& implementation,
             const PromptRecord& reference, const PromptErrors& errors, const LayerSizes& sizes,
             int64_t kv_head, const Positions& kept)
      : layer_(layer),
        implementation_(implementation),
        arithmetic_(implementation.arithmetic.attention),
        prompt_(layer.prompt()),
        budget_(implementation.budget(kv_head)),
        rules_(rules_of(implementation.policy.host, layer.prompt_tokens, budget_)),
        change_(reference::change_of(implementation.policy.score)),
        sizes_(sizes),
        g_(kv_head),
        group_size_(layer.shape.group_size()),
        cache_(filled(layer, kv_head, kept)),
        eviction_(prompt_, implementation.policy, kv_head, budget_, group(errors.ranking.head_scores),
                  cache_norms(reference, kept), cache_) {
    if (!eviction_.is_scored()) return;
    running_errors_ = Matrix(group_size_, layer.values.view().rows);
    for (int64_t h = 0; h < group_size_; ++h) {
      std::ranges::copy(group(errors.head_score).row(h), running_errors_.row(h).begin());
    }
    if (change_) measured_ = reference::MeasuredValues(layer.values.slice(g_), spaces());
  }

  // claimed: nothing if nothing is
  Choice step(int64_t t, const std::optional<int64_t>& claimed) {
    const StepView view = layer_.step(t);
    newest_ = layer_.prompt_tokens + t;
    cache_.append(newest_, view.keys.row(g_), view.values.row(g_));
    eviction_.enter(cache_);
    queries_ = view.queries.middle_rows(g_ * group_size_, group_size_);
    eviction_.attend(queries_, cache_);
    if (eviction_.is_scored()) take_in_errors();
    const Departure departure{{t, g_}, newest_, budget_, rules_, cache_, eviction_};
    const Choice choice = claimed ? judge(departure, *claimed) : Choice{departure.own(), false};
    remove(choice.forced);
    return choice;
  }

 private:
  static reference::HeadCache filled(const traces::Layer& layer, int64_t kv_head, const Positions& kept) {
    reference::HeadCache cache;
    for (const int64_t position : kept) {
      cache.append(position, layer.keys.slice(kv_head).row(position),
                   layer.values.slice(kv_head).row(position));
    }
    return cache;
  }

  // Projected value norms of the cache's entries, where stage two of a departure asks for them.
  Matrix cache_norms(const PromptRecord& reference, const Positions& kept) const {
    if (!std::holds_alternative<Critical>(implementation_.policy.selection)) return {};
    return columns_of(group(*reference.projected_value_norms), kept);
  }

  MatrixView group(const Matrix& rows) const {
    return rows.rows() > 0 ? rows.view().middle_rows(g_ * group_size_, group_size_) : MatrixView();
  }
  std::span<const reference::ChangeSpace> spaces() const {
    return std::span(sizes_.spaces)
        .subspan(static_cast<size_t>(g_ * group_size_), static_cast<size_t>(group_size_));
  }

  // How far this query's contributions may be off, [group_size, entries].
  Matrix contribution_errors() const {
    if (!change_) {
      return reference::attention_weight_errors(queries_, cache_.keys, layer_.scale, arithmetic_);
    }
    reference::MeasuredValues here;
    here.sizes = columns_of(measured_.sizes, cache_.positions);
    here.squared_norms = columns_of(measured_.squared_norms, cache_.positions);
    return reference::change_score_errors(*change_, queries_, cache_.keys, cache_.values, here, spaces(),
                                          layer_.scale, arithmetic_);
  }

  void take_in_errors() {
    const Matrix errors = contribution_errors();
    const MatrixView scores = eviction_.head_scores();
    const bool adds_up = std::holds_alternative<H2o>(implementation_.policy.host);
    for (int64_t h = 0; h < group_size_; ++h) {
      for (int64_t entry = 0; entry < cache_.entries(); ++entry) {
        double& error = running_errors_(h, cache_.positions[static_cast<size_t>(entry)]);
        error = adds_up ? reference::running_sum_error(scores(h, entry), error, errors(h, entry), arithmetic_)
                        : errors(h, entry);
      }
    }
  }

  void remove(int64_t position) {
    const auto found = std::ranges::find(cache_.positions, position);
    if (found == cache_.positions.end()) return;
    const int64_t entry = found - cache_.positions.begin();
    eviction_.leave(entry);
    cache_.remove(entry);
  }

  Choice judge(const Departure& departure, int64_t claimed) const {
    const int64_t own = departure.own();
    if (claimed == own) return {own, own == kNobody || can_tell(departure)};
    if (const std::optional<Choice> unscored = judge_unscored(departure, claimed)) return *unscored;
    return judge_by_scores(departure, claimed);
  }

  // One that may leave left, but not the one that the reference lets go.
  Choice judge_by_scores(const Departure& departure, int64_t claimed) const {
    const std::vector<int64_t> entries = departure.candidates();
    const Positions positions = departure.positions_of(entries);
    const std::vector<int64_t> staying = Departure::staying(positions, claimed);
    const std::optional<Fault> fault = std::holds_alternative<Critical>(implementation_.policy.selection)
                                           ? critical(entries, staying)
                                           : top_k_fault(scores(entries).view(), staying);
    return judge_scored(departure, claimed, positions, fault);
  }

  int64_t position_of(int64_t entry) const { return cache_.positions[static_cast<size_t>(entry)]; }
  Positions positions_of(const std::vector<int64_t>& entries) const {
    Positions positions;
    for (const int64_t entry : entries) positions.push_back(position_of(entry));
    return positions;
  }

  struct OwnedScores {
    std::vector<double> scores, errors;
    UncertainScores view() const { return {scores, errors}; }
  };

  // Reduced over the group.
  OwnedScores scores(const std::vector<int64_t>& entries) const {
    const Matrix own = columns_of(eviction_.head_scores(), entries);
    const Matrix off = columns_of(running_errors_, positions_of(entries));
    const Matrix reduced =
        change_ ? reference::group_sum(own, group_size_) : reference::group_mean(own, group_size_);
    const Matrix errors = change_ ? reference::group_sum_errors(own, off, group_size_, arithmetic_)
                                  : reference::group_mean_errors(own, off, group_size_, arithmetic_);
    return {{reduced.row(0).begin(), reduced.row(0).end()}, {errors.row(0).begin(), errors.row(0).end()}};
  }

  OwnedScores stage_two(const std::vector<int64_t>& entries, const Critical& options) const {
    const Matrix own = columns_of(eviction_.head_scores(), entries);
    const Matrix off = columns_of(running_errors_, positions_of(entries));
    const Matrix norms = columns_of(eviction_.norms(), entries);
    const Matrix norm_errors = columns_of(group(sizes_.norm_errors), positions_of(entries));
    return {reference::stage_two_scores(own, norms, options.epsilon, options.gqa),
            reference::stage_two_score_errors(own, off, norms, norm_errors, options.epsilon, options.gqa,
                                              arithmetic_)};
  }

  // Whether the bounds tell the best of those that may leave from the worst.
  bool can_tell(const Departure& departure) const {
    const std::vector<int64_t> entries = departure.candidates();
    if (!eviction_.is_scored() || entries.size() == 1) return true;
    const OwnedScores all = scores(entries);
    double best = -kInfinity, worst = kInfinity;
    for (size_t j = 0; j < entries.size(); ++j) {
      best = std::max(best, all.scores[j] - all.errors[j]);
      worst = std::min(worst, all.scores[j] + all.errors[j]);
    }
    return best > worst;
  }

  // CriticalKV's stages, of any size of stage one that rounding may lead to.
  std::optional<Fault> critical(const std::vector<int64_t>& entries,
                                const std::vector<int64_t>& staying) const {
    const Critical& options = std::get<Critical>(implementation_.policy.selection);
    const OwnedScores attention = scores(entries), second = stage_two(entries, options);
    const int64_t k = static_cast<int64_t>(entries.size()) - (cache_.entries() - budget_);
    const CountRange counts =
        options.alpha ? CountRange{floor_of_product(*options.alpha, k), floor_of_product(*options.alpha, k)}
                      : adaptive_range(entries, attention.view(), k);
    std::optional<Fault> least;
    for (int64_t count = counts.first; count <= counts.last; ++count) {
      const std::optional<Fault> found = critical_fault(attention.view(), second.view(), staying, count);
      if (!found) return std::nullopt;
      if (!least || found->faulty < least->faulty) least = found;
    }
    return least;
  }

  CountRange adaptive_range(const std::vector<int64_t>& entries, const UncertainScores& scores,
                            int64_t k) const {
    const std::vector<RankRange> ranks = rank_ranges(scores);
    std::vector<int64_t> always_kept;
    for (int64_t entry = 0; entry < cache_.entries(); ++entry) {
      if (rules_.always_keeps(position_of(entry), newest_)) always_kept.push_back(entry);
    }
    const Matrix weights =
        reference::attention_weights(queries_, cache_.keys, layer_.scale, cache_.entries() - 1);
    const Matrix errors =
        reference::attention_weight_errors(queries_, cache_.keys, layer_.scale, arithmetic_);
    reference::Arithmetic in_any_order = arithmetic_;
    in_any_order.chain = in_any_order.product_chain = -1;
    const double adding = reference::sum_rounding(cache_.entries(), in_any_order);
    CountRange all{0, 0};
    for (int64_t h = 0; h < group_size_; ++h) {
      const CountRange counts =
          adaptive_counts(weights.row(h), errors.row(h), always_kept, entries, ranks, k, adding);
      all.first = std::max(all.first, counts.first);
      all.last = std::max(all.last, counts.last);
    }
    return all;
  }

  const traces::Layer& layer_;
  const TestedImplementation& implementation_;
  const reference::Arithmetic& arithmetic_;
  const LayerView prompt_;
  const int64_t budget_;
  const HostRules rules_;
  const std::optional<reference::Change> change_;
  const LayerSizes& sizes_;
  const int64_t g_, group_size_;
  reference::HeadCache cache_;
  reference::Eviction eviction_;
  reference::MeasuredValues measured_;  // of all n + T values, where changes are scored
  Matrix running_errors_;               // [group_size, n + T]: of the running scores, by position
  MatrixView queries_;                  // the step's [group_size, head_dim]
  int64_t newest_ = 0;
};

}  // namespace

LeftJudgement judge_left(const traces::Layer& layer, const TestedImplementation& implementation,
                         const PromptRecord& reference, const PromptErrors& errors,
                         const std::vector<Positions>& kept,
                         const std::optional<std::vector<int64_t>>& left) {
  const LayerSizes sizes(layer, implementation);
  const int64_t heads = layer.shape.kv_heads;
  std::vector<std::vector<Choice>> choices(kept.size());
  reference::parallel_for(heads, [&](int64_t g) {
    const auto index = static_cast<size_t>(g);
    HeadReplay head(layer, implementation, reference, errors, sizes, g, kept[index]);
    for (int64_t t = 0; t < implementation.steps; ++t) {
      choices[index].push_back(left ? head.step(t, (*left)[static_cast<size_t>(t * heads + g)])
                                    : head.step(t, std::nullopt));
    }
  });
  LeftJudgement result;
  ChoiceTally tally("left");
  for (const std::vector<Choice>& head : choices) {
    std::vector<int64_t>& forced = result.forced.emplace_back();
    for (const Choice& choice : head) {
      forced.push_back(choice.forced);
      if (left) tally.add(choice);
    }
  }
  result.agreement = tally.result();
  return result;
}

}  // namespace kvbound::sim
