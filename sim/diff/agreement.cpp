#include "agreement.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/judge/allocation.hpp>
#include <kvbound/sim/diff/judge/kept_sets.hpp>
#include <kvbound/sim/diff/judge/output_rows.hpp>
#include <kvbound/sim/diff/judge/whole_rows.hpp>
#include <kvbound/sim/diff/replay/layer_replay.hpp>
#include <kvbound/sim/diff/replay/metric_errors.hpp>

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

Positions offsets_of(const Positions& budgets) {
  Positions offsets{0};
  for (const int64_t budget : budgets) offsets.push_back(offsets.back() + budget);
  return offsets;
}

// The reference's record of a prompt, given every KV head's budget, whichever
// allocation the budgets came from.
PromptRecord compressed(const LayerView& prompt, Policy policy, const Positions& budgets) {
  policy.allocation = Uniform{};
  return reference::make_session()->compress(prompt, policy, budgets);
}

// Judges one layer's claims, tensor by tensor.
class LayerJudge {
 public:
  LayerJudge(const traces::Layer& layer, const TestedImplementation& implementation,
             const LayerClaims& claims)
      : layer_(layer),
        shape_(layer.shape),
        implementation_(with_input_rounding(implementation, layer)),
        claims_(claims),
        prompt_(layer.prompt()),
        allocation_(judge_allocation(prompt_, implementation_, claims.kept ? &*claims.kept : nullptr)),
        reference_(compressed(prompt_, implementation.policy, allocation_.budgets)),
        evicts_(evicts(implementation.policy.host)),
        merges_(rules_of(implementation.policy.merge).merges) {
    implementation_.budgets = allocation_.budgets;
  }

  JudgedLayer judge() {
    judge_prompt();
    followed_.kept = teacher_forced_;
    if (follows()) judge_replay();
    return {std::move(results_), std::move(followed_)};
  }

 private:
  bool wants_metrics() const {
    return claims_.kept_mass || claims_.bound || claims_.perturbation || claims_.layer_perturbation;
  }
  // Whether a claim depends on what follows the choice of kept entries.
  bool follows() const { return merges_ || claims_.evicted || claims_.output || wants_metrics(); }
  int64_t group_size() const { return shape_.group_size(); }

  void add(const char* tensor, const RealClaim& claim, VectorView expected, VectorView bounds) {
    results_.push_back(compare(tensor, claim, expected, bounds));
  }
  void add(const char* tensor, const std::optional<RealClaim>& claim, const Matrix& expected,
           const Matrix& errors) {
    if (claim) add(tensor, *claim, expected.numbers(), errors.numbers());
  }
  // Judges the rows as wholes, too.
  //
  // numbers  what they hold, in the plural
  void add_rows(const char* tensor, const char* numbers, const RealClaim& claim, const Matrix& expected,
                const Matrix& errors) {
    add(tensor, claim, expected.numbers(), errors.numbers());
    judge_rows({claim, expected.numbers(), errors.numbers()}, rows_of(claim), numbers, results_.back());
  }

  // Tensors of the prompt's end: scores, norms and the kept sets.
  void judge_prompt() {
    if (claims_.prompt_output) judge_prompt_output();
    if (claims_.score_positions) {
      results_.push_back(compare("score_positions", *claims_.score_positions, reference_.score_positions));
    }
    const bool scores_wanted = claims_.score || claims_.stage_two_score || claims_.projected_value_norms ||
                               claims_.kept || ((evicts_ || merges_) && follows());
    if (scores_wanted) errors_ = PromptErrors(prompt_, implementation_, reference_);
    if (claims_.score) add_rows("score", "scores", *claims_.score, reference_.score, errors_.score);
    if (claims_.projected_value_norms) {
      add_rows("projected_value_norms", "norms", *claims_.projected_value_norms,
               *reference_.projected_value_norms, errors_.norms);
    }
    if (claims_.stage_two_score) {
      add_rows("stage_two_score", "scores", *claims_.stage_two_score, *reference_.stage_two_score,
               errors_.stage_two_score);
    }
    if (claims_.kept_offsets) {
      results_.push_back(compare("kept_offsets", *claims_.kept_offsets, offsets_of(kept_sizes())));
    }
    teacher_forced_ = reference_.kept;
    if (!claims_.kept) return;
    results_.push_back(judge_kept(prompt_, implementation_, reference_, errors_, *claims_.kept,
                                  claims_.target_of, teacher_forced_));
    *results_.back().near_tie_swaps += allocation_.near_tie_swaps;
    results_.back().undecided += allocation_.undecided;
    if (allocation_.undecided > 0) leave_undecided(*claims_.kept, results_.back());
  }

  // Leaves every KV head's kept set undecided.
  static void leave_undecided(const std::vector<Positions>& kept, TensorAgreement& agreement) {
    int64_t first = 0;
    for (const Positions& head : kept) {
      if (!head.empty()) agreement.undecided_at.push_back(first);
      first += std::ssize(head);
    }
  }

  // Attention of the recorded prompt queries, each to the prompt's entries up to its own, before compression.
  void judge_prompt_output() {
    const RealClaim& claim = *claims_.prompt_output;
    const reference::Arithmetic& arithmetic = implementation_.arithmetic.attention;
    std::vector<double> expected(claim.numbers.size()), bounds(claim.numbers.size());
    OutputRows rows(claim, layer_.scale);
    reference::parallel_for(layer_.window_queries * shape_.kv_heads, [&](int64_t i) {
      const int64_t row = i / shape_.kv_heads, g = i % shape_.kv_heads;
      const int64_t visible = layer_.prompt_tokens - layer_.window_queries + row + 1;
      const MatrixView queries = shape_.group_rows(layer_.queries.view().row_of_slices(row), g),
                       keys = layer_.keys.slice(g).middle_rows(0, visible),
                       values = layer_.values.slice(g).middle_rows(0, visible);
      const Matrix output = reference::attention(queries, keys, values, layer_.scale).output;
      const reference::AttentionErrors errors =
          reference::attention_errors(queries, keys, values, layer_.scale, {}, arithmetic);
      const int64_t first = row * shape_.query_heads + g * group_size();
      std::ranges::copy(output.numbers(), expected.begin() + first * shape_.head_dim);
      std::ranges::copy(errors.output.numbers(), bounds.begin() + first * shape_.head_dim);
      rows.add(first, queries, keys, values, {}, errors, arithmetic);
    });
    add("prompt_output", claim, expected, bounds);
    rows.complete(expected, results_.back());
  }

  // Number of entries that each KV head keeps. With order=merge-first it may be below
  // the budget: see judge_kept.
  Positions kept_sizes() const {
    if (rules_of(implementation_.policy.merge).order == MergeOrder::evict_first)
      return implementation_.budgets;
    Positions sizes;
    for (const Positions& kept : claims_.kept ? *claims_.kept : reference_.kept) {
      sizes.push_back(std::ssize(kept));
    }
    return sizes;
  }

  // Choices and merged entries from the prompt's end on, outputs, and the metrics that follow from them.
  void judge_replay() {
    const int64_t steps = implementation_.steps;
    LayerReplay replay(layer_, implementation_, reference_, errors_, teacher_forced_, claims_);
    std::optional<MetricErrors> metrics;
    if (wants_metrics() && steps > 0) metrics.emplace(layer_, implementation_);
    std::optional<OutputRows> rows;
    if (claims_.output) rows.emplace(*claims_.output, layer_.scale);
    std::optional<ReplayedOutputs> outputs;
    if (claims_.output || metrics) outputs.emplace(shape_, steps);
    const auto attended = [&](const AttendedCache& cache) {
      outputs->add(cache);
      if (metrics) metrics->add(cache);
      if (rows && cache.certain) {
        rows->add(cache.step * shape_.query_heads + cache.kv_head * group_size(), cache.queries,
                  cache.cache.keys, cache.cache.values, cache.cache.votes, cache.errors,
                  implementation_.arithmetic.attention);
      }
    };
    replay.run(outputs ? Attended(attended) : Attended());
    followed_ = replay.followed();
    append(replay.agreements());
    if (claims_.output) {
      results_.push_back(outputs->agreement(*claims_.output, merges_));
      rows->complete(outputs->expected(), results_.back());
    }
    if (metrics) {
      append(metrics->judge(replay.record(merges_ ? &*outputs : nullptr), outputs->certain, claims_));
    } else {
      judge_no_metrics();
    }
  }

  void append(std::vector<TensorAgreement> found) { std::ranges::move(found, std::back_inserter(results_)); }

  // Without decode steps these tensors have no elements, so they neither agree nor disagree.
  void judge_no_metrics() {
    const Matrix nothing;
    add("kept_mass", claims_.kept_mass, nothing, nothing);
    add("bound", claims_.bound, nothing, nothing);
    add("perturbation", claims_.perturbation, nothing, nothing);
    add("layer_perturbation", claims_.layer_perturbation, nothing, nothing);
  }

  const traces::Layer& layer_;
  const LayerShape shape_;
  TestedImplementation implementation_;
  const LayerClaims& claims_;
  const LayerView prompt_;
  const AllocationJudgement allocation_;
  const PromptRecord reference_;
  const bool evicts_, merges_;
  PromptErrors errors_;
  std::vector<Positions> teacher_forced_;  // per KV head: the kept set that the replay continues with
  FollowedChoices followed_;
  std::vector<TensorAgreement> results_;
};

}  // namespace

JudgedLayer judge_layer(const traces::Layer& layer, const TestedImplementation& implementation,
                        const LayerClaims& claims) {
  return LayerJudge(layer, implementation, claims).judge();
}

std::vector<TensorAgreement> agreement(const traces::Layer& layer, const TestedImplementation& implementation,
                                       const LayerClaims& claims) {
  return judge_layer(layer, implementation, claims).tensors;
}

}  // namespace kvbound::sim
