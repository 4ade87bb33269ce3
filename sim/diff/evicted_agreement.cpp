#include "evicted_agreement.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>

#include "choice.hpp"
#include "critical_eviction.hpp"
#include "eviction_choice.hpp"
#include "near_tie.hpp"
#include "running_errors.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;
using reference::columns_of;

// Data that all KV heads and steps of a layer share; columns are positions, rows query heads.
struct LayerSizes {
  LayerSizes(const traces::Layer& layer, const TestedImplementation& implementation) {
    const Policy& policy = implementation.policy;
    if (const ScoreRules score = rules_of(policy.score); score.change) {
      spaces = reference::change_spaces(score.space, layer.output_projection, layer.shape.query_heads);
    }
    if (const SelectionRules selection = rules_of(policy.selection); selection.in_decoding) {
      const Norm norm = selection.two_stage->norm;
      const Matrix norms =
          reference::projected_value_norms(layer.shape, layer.values, layer.output_projection, norm);
      norm_errors =
          reference::projected_value_norm_errors(layer.shape, layer.values, layer.output_projection, norm,
                                                 norms, implementation.arithmetic.norms(norm));
    }
  }

  std::vector<reference::ChangeSpace> spaces;  // [query_heads], for scores that measure a change
  Matrix norm_errors;                          // [query_heads, n + T], with `critical`
};

// One KV head's cache as the tested implementation's choices produce it, with the reference's running scores and their
// error bounds.
class HeadReplay {
 public:
  HeadReplay(const traces::Layer& layer, const TestedImplementation& implementation,
             const PromptRecord& reference, const PromptErrors& errors, const LayerSizes& sizes,
             int64_t kv_head, const Positions& kept)
      : layer_(layer),
        implementation_(implementation),
        arithmetic_(implementation.arithmetic.attention),
        budget_(implementation.budget(kv_head)),
        rules_(rules_of(implementation.policy.host, layer.prompt_tokens, budget_)),
        score_(rules_of(implementation.policy.score)),
        sizes_(sizes),
        g_(kv_head),
        group_size_(layer.shape.group_size()),
        stepper_(layer.prompt(), implementation.policy, kv_head, budget_),
        errors_(group(errors.head_score), group_size_, layer.values.view().rows, arithmetic_) {
    const LayerView prompt = layer.prompt();
    const auto& norms = reference.projected_value_norms;
    stepper_.fill(prompt, kept);
    stepper_.begin_evicting(prompt, group(errors.ranking.head_scores), norms ? group(*norms) : MatrixView());
    if (score_.change && rules_.ranks())
      measured_ = reference::MeasuredValues(layer.values.slice(g_), spaces());
  }

  // claimed: the evicted position; nullopt where none is recorded
  Choice step(int64_t t, const std::optional<int64_t>& claimed) {
    const StepView view = layer_.step(t);
    stepper_.enter(layer_.prompt_tokens + t, view.keys.row(g_), view.values.row(g_));
    queries_ = group(view.queries);
    stepper_.attend(queries_);
    if (rules_.ranks()) errors_.update(rules_, stepper_.eviction(), cache().positions, contribution_errors());
    const EvictionPlace place{{t, g_}, budget_, rules_, stepper_};
    const Choice choice = claimed ? judge(place, *claimed) : unjudged_choice(place.own());
    if (const int64_t entry = cache().find(choice.teacher_forced); entry >= 0)
      stepper_.evict(entry, queries_);
    return choice;
  }

 private:
  const reference::HeadCache& cache() const { return stepper_.cache(); }
  MatrixView group(MatrixView rows) const { return layer_.shape.group_rows(rows, g_); }
  std::span<const reference::ChangeSpace> spaces() const {
    return std::span(sizes_.spaces).subspan(g_ * group_size_, static_cast<size_t>(group_size_));
  }

  // Error bounds of this step's contributions to the scores, [group_size, entries].
  Matrix contribution_errors() const {
    if (!score_.change) {
      return reference::attention_weight_errors(queries_, cache().keys, layer_.scale, arithmetic_);
    }
    reference::MeasuredValues here;
    here.sizes = columns_of(measured_.sizes, cache().positions);
    here.squared_norms = columns_of(measured_.squared_norms, cache().positions);
    return reference::change_score_errors(*score_.change, queries_, cache().keys, cache().values, here,
                                          spaces(), layer_.scale, implementation_.arithmetic.change_scores);
  }

  Choice judge(const EvictionPlace& place, int64_t claimed) const {
    const int64_t own = place.own();
    if (claimed == own) {
      return own == kNoPosition || can_tell(place) ? same_choice(own) : unjudged_choice(own);
    }
    if (const std::optional<Choice> unscored = judge_unscored(place, claimed)) return *unscored;
    return judge_by_scores(place, claimed);
  }

  // Judges an eviction that the host's rules allow but that is not the reference's.
  Choice judge_by_scores(const EvictionPlace& place, int64_t claimed) const {
    const EvictionCandidates candidates = place.candidates();
    const std::vector<int64_t> kept = candidates.without(claimed);
    const std::optional<Fault> fault = rules_of(implementation_.policy.selection).in_decoding
                                           ? critical(place, candidates, kept)
                                           : top_k_fault(scores(candidates).view(), kept);
    return judge_scored(place, claimed, candidates, fault);
  }

  // The candidates' scores, reduced over the group of query heads.
  BoundedScores scores(const EvictionCandidates& candidates) const {
    return errors_.reduced(stepper_.eviction(), candidates, score_.group);
  }

  // Whether the error bounds separate the best eviction candidate from the worst.
  bool can_tell(const EvictionPlace& place) const {
    const EvictionCandidates candidates = place.candidates();
    return !rules_.ranks() || candidates.entries.size() == 1 || separates(scores(candidates).view());
  }

  // The near-tie rule of CriticalKV's stages.
  std::optional<Fault> critical(const EvictionPlace& place, const EvictionCandidates& candidates,
                                const std::vector<int64_t>& kept) const {
    const TwoStage options = *rules_of(implementation_.policy.selection).two_stage;
    const BoundedScores attention = scores(candidates);
    const Matrix score_errors = errors_.at(candidates.positions),
                 norm_errors = columns_of(group(sizes_.norm_errors), candidates.positions);
    const auto weights = [&]() -> StepWeights {
      const MatrixView keys = cache().keys;
      return {reference::attention_weights(queries_, keys, layer_.scale, cache().entries() - 1),
              reference::attention_weight_errors(queries_, keys, layer_.scale, arithmetic_)};
    };
    return CriticalEviction{options,      place,       candidates,  attention,
                            score_errors, norm_errors, arithmetic_, weights}
        .fault(kept);
  }

  const traces::Layer& layer_;
  const TestedImplementation& implementation_;
  const reference::Arithmetic& arithmetic_;
  const int64_t budget_;
  const HostRules rules_;
  const ScoreRules score_;
  const LayerSizes& sizes_;
  const int64_t g_, group_size_;
  reference::HeadStepper stepper_;
  RunningErrors errors_;
  reference::MeasuredValues measured_;  // of all n + T values, for scores that measure a change
  MatrixView queries_;                  // the step's [group_size, head_dim]
};

}  // namespace

EvictedJudgement judge_evicted(const traces::Layer& layer, const TestedImplementation& implementation,
                               const PromptRecord& reference, const PromptErrors& errors,
                               const std::vector<Positions>& kept,
                               const std::optional<std::vector<int64_t>>& evicted) {
  const LayerSizes sizes(layer, implementation);
  const int64_t heads = layer.shape.kv_heads;
  std::vector<std::vector<Choice>> choices(kept.size());
  reference::parallel_for(heads, [&](int64_t g) {
    const int64_t index = g;
    HeadReplay head(layer, implementation, reference, errors, sizes, g, kept[index]);
    for (int64_t t = 0; t < implementation.steps; ++t) {
      choices[index].push_back(evicted ? head.step(t, (*evicted)[t * heads + g])
                                       : head.step(t, std::nullopt));
    }
  });
  EvictedJudgement result;
  ChoiceTally tally("evicted");
  for (const std::vector<Choice>& head : choices) {
    std::vector<int64_t>& teacher_forced = result.teacher_forced.emplace_back();
    for (const Choice& choice : head) {
      teacher_forced.push_back(choice.teacher_forced);
      if (evicted) tally.add(choice);
    }
  }
  result.agreement = tally.result();
  return result;
}

}  // namespace kvbound::sim
