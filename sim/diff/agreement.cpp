#include "agreement.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <variant>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/cache_positions.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/measure/metrics.hpp>

#include "allocation_agreement.hpp"
#include "evicted_agreement.hpp"
#include "input_rounding.hpp"
#include "kept_agreement.hpp"
#include "merge_agreement.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

Positions offsets_of(const Positions& budgets) {
  Positions offsets{0};
  for (const int64_t budget : budgets) offsets.push_back(offsets.back() + budget);
  return offsets;
}

// The reference's record of a prompt, given every KV head's budget, whichever allocation the budgets came from.
PromptRecord compressed(const LayerView& prompt, Policy policy, const Positions& budgets) {
  policy.allocation = Uniform{};
  return reference::make_session()->compress(prompt, policy, budgets);
}

// The tested implementation's arithmetic, with the rounding of this layer's inputs to its storage type added.
TestedImplementation with_input_rounding(TestedImplementation implementation, const traces::Layer& layer) {
  const InputRounding rounding = input_rounding(layer, implementation.storage);
  OperationArithmetic& operations = implementation.arithmetic;
  for (reference::Arithmetic* arithmetic :
       {&operations.window_attention, &operations.change_scores, &operations.projected_value_norms,
        &operations.projected_value_norms_l2, &operations.attention, &operations.nearest_keys,
        &operations.nearest_key}) {
    arithmetic->input = std::max(arithmetic->input, rounding.relative);
    arithmetic->input_floor = rounding.floor;
  }
  return implementation;
}

// Error bounds of ||(o - o^) W||_1, given bounds on the errors of the outputs o (full cache) and o^ (compressed cache).
class OutputFigures {
 public:
  OutputFigures(const traces::Layer& layer, const MergeJudgement& judgement,
                const reference::Arithmetic& arithmetic, const Matrix& row_norms)
      : errors_(judgement.output_errors.view().slices, layer.shape.query_heads), terms_(errors_) {
    const LayerShape& shape = layer.shape;
    const double products = reference::sum_rounding(2 * shape.head_dim + shape.model_dim + 8, arithmetic) +
                            4 * arithmetic.input + arithmetic.tensor_share();
    const double floor = arithmetic.input_floor * static_cast<double>(shape.model_dim);
    reference::parallel_for(errors_.rows() * shape.query_heads, [&](int64_t i) {
      const int64_t t = i / shape.query_heads, h = i % shape.query_heads, g = shape.kv_head_of(h);
      const int64_t tokens = layer.prompt_tokens + t + 1;
      const MatrixView keys = layer.keys.slice(g).middle_rows(0, tokens),
                       values = layer.values.slice(g).middle_rows(0, tokens),
                       query = layer.step(t).queries.middle_rows(h, 1);
      const Matrix full = reference::attention(query, keys, values, layer.scale).output;
      const Matrix off = reference::attention_errors(query, keys, values, layer.scale, {}, arithmetic).output;
      const VectorView output = judgement.record.steps[t].output.row(h);
      for (int64_t c = 0; c < shape.head_dim; ++c) {
        const double error = off(0, c) + judgement.output_errors.slice(t)(h, c);
        const double size = std::abs(full(0, c)) + std::abs(output[c]) + error;
        terms_(t, h) += size * (row_norms(h, c) + floor);
        errors_(t, h) += error * row_norms(h, c) + products * size * row_norms(h, c) + 2 * floor * size;
      }
    });
  }

  double error(int64_t step, int64_t head) const { return errors_(step, head); }
  double terms(int64_t step, int64_t head) const { return terms_(step, head); }

 private:
  Matrix errors_, terms_;  // [steps, query_heads]
};

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

  std::vector<TensorAgreement> judge() {
    judge_prompt();
    if (merges_) {
      judge_merges();
      return std::move(results_);
    }
    if (implementation_.steps == 0) {
      judge_no_steps();
      return std::move(results_);
    }
    const bool follows = claims_.output || wants_metrics();
    if (evicts_ && (claims_.evicted || follows)) judge_evictions();
    if (follows) record_ = teacher_forced_record();
    if (claims_.output) judge_output();
    if (wants_metrics()) judge_metrics();
    return std::move(results_);
  }

 private:
  bool wants_metrics() const {
    return claims_.kept_mass || claims_.bound || claims_.perturbation || claims_.layer_perturbation;
  }
  int64_t group_size() const { return shape_.group_size(); }

  void add(const char* tensor, const RealClaim& claim, VectorView expected, VectorView bounds) {
    results_.push_back(compare(tensor, claim, expected, bounds));
  }
  void add(const char* tensor, const std::optional<RealClaim>& claim, const Matrix& expected,
           const Matrix& errors) {
    if (claim) add(tensor, *claim, expected.numbers(), errors.numbers());
  }
  void add(const char* tensor, const std::optional<RealClaim>& claim, VectorView expected, VectorView bounds,
           const std::vector<bool>& certain) {
    if (claim) results_.push_back(compare_uncertain(tensor, *claim, expected, bounds, certain));
  }

  // Tensors of the prompt's end: scores, norms and the kept sets.
  void judge_prompt() {
    if (claims_.prompt_output) judge_prompt_output();
    if (claims_.score_positions) {
      results_.push_back(compare("score_positions", *claims_.score_positions, reference_.score_positions));
    }
    const bool scores_wanted = claims_.score || claims_.stage_two_score || claims_.projected_value_norms ||
                               claims_.kept || (evicts_ && implementation_.steps > 0) || merges_;
    if (scores_wanted) errors_.emplace(prompt_, implementation_, reference_);
    if (claims_.score) add("score", claims_.score, reference_.score, errors_->score);
    if (claims_.projected_value_norms) {
      add("projected_value_norms", claims_.projected_value_norms, *reference_.projected_value_norms,
          errors_->norms);
    }
    if (claims_.stage_two_score) {
      add("stage_two_score", claims_.stage_two_score, *reference_.stage_two_score, errors_->stage_two_score);
    }
    if (claims_.kept_offsets) {
      results_.push_back(compare("kept_offsets", *claims_.kept_offsets, offsets_of(kept_sizes())));
    }
    teacher_forced_ = reference_.kept;
    if (!claims_.kept) return;
    results_.push_back(judge_kept(prompt_, implementation_, reference_, *errors_, *claims_.kept,
                                  claims_.target_of, teacher_forced_));
    *results_.back().near_tie_swaps += allocation_.near_tie_swaps;
    results_.back().undecided += allocation_.undecided;
  }

  // Attention of the recorded prompt queries, each to the prompt's entries up to its own, before compression.
  void judge_prompt_output() {
    const RealClaim& claim = *claims_.prompt_output;
    std::vector<double> expected(claim.numbers.size()), bounds(claim.numbers.size());
    reference::parallel_for(layer_.window_queries * shape_.kv_heads, [&](int64_t i) {
      const int64_t row = i / shape_.kv_heads, g = i % shape_.kv_heads;
      const int64_t visible = layer_.prompt_tokens - layer_.window_queries + row + 1;
      const MatrixView queries = shape_.group_rows(layer_.queries.view().row_of_slices(row), g);
      const int64_t first = (row * shape_.query_heads + g * group_size()) * shape_.head_dim;
      judge_attention(queries, layer_.keys.slice(g).middle_rows(0, visible),
                      layer_.values.slice(g).middle_rows(0, visible), std::span(expected).subspan(first),
                      std::span(bounds).subspan(first));
    });
    add("prompt_output", claim, expected, bounds);
  }

  // The reference's output of some queries over a cache, and the bounds of its errors.
  void judge_attention(MatrixView queries, MatrixView keys, MatrixView values, std::span<double> expected,
                       std::span<double> bounds) const {
    const Matrix output = reference::attention(queries, keys, values, layer_.scale).output;
    const Matrix errors = reference::attention_errors(queries, keys, values, layer_.scale, {},
                                                      implementation_.arithmetic.attention)
                              .output;
    std::ranges::copy(output.numbers(), expected.begin());
    std::ranges::copy(errors.numbers(), bounds.begin());
  }

  // Number of entries that each KV head keeps. With order=merge-first it may be below the budget: see judge_kept.
  Positions kept_sizes() const {
    if (rules_of(implementation_.policy.merge).order == MergeOrder::evict_first)
      return implementation_.budgets;
    Positions sizes;
    for (const Positions& kept : claims_.kept ? *claims_.kept : reference_.kept) {
      sizes.push_back(std::ssize(kept));
    }
    return sizes;
  }

  // The entry evicted at each step, per KV head.
  void judge_evictions() {
    EvictedJudgement judgement =
        judge_evicted(layer_, implementation_, reference_, *errors_, teacher_forced_, claims_.evicted);
    evicted_ = std::move(judgement.teacher_forced);
    if (claims_.evicted) results_.push_back(std::move(judgement.agreement));
  }

  // Merged entries, and every tensor that depends on them.
  void judge_merges() {
    const MergeJudgement judgement =
        judge_merging(layer_, implementation_, reference_, *errors_, teacher_forced_, claims_);
    std::ranges::copy(judgement.agreements, std::back_inserter(results_));
    if (implementation_.steps > 0 && wants_metrics()) judge_metrics_of(judgement);
    if (implementation_.steps == 0) judge_no_metrics();
  }

  // Metrics derived from the recorded outputs; their bounds follow from the bounds on the outputs.
  void judge_metrics_of(const MergeJudgement& judgement) {
    const Matrix norms = all_norms(),
                 row_norms = reference::projection_row_norms(layer_.output_projection, shape_.head_dim);
    const LayerMetrics metrics = measured(judgement.record, norms);
    const Matrix norm_errors = norm_errors_of(norms);
    const OutputFigures figures(layer_, judgement, implementation_.arithmetic.attention, row_norms);
    Matrix mass(implementation_.steps, shape_.query_heads), perturbation = mass, terms = mass;
    for_each_step(judgement.record, [&](int64_t t, int64_t g, const Positions& cached) {
      const auto errors = step_errors(t, g, cached, norms, norm_errors, row_norms);
      for (int64_t i = 0; i < group_size(); ++i) {
        const int64_t h = g * group_size() + i;
        mass(t, h) = errors[i].kept_mass;
        terms(t, h) = figures.terms(t, h);
        perturbation(t, h) = figures.error(t, h);
      }
    });
    const std::vector<bool> heads = judgement.certain_query_heads(shape_);
    add("kept_mass", claims_.kept_mass, metrics.kept_mass.numbers(), mass.numbers(), heads);
    add("perturbation", claims_.perturbation, metrics.perturbation.numbers(), perturbation.numbers(), heads);
    add("layer_perturbation", claims_.layer_perturbation, metrics.layer_perturbation,
        layer_errors(perturbation, terms), judgement.certain_steps(shape_));
  }

  // Without decode steps these tensors have no elements, so they neither agree nor disagree.
  void judge_no_steps() {
    const Matrix nothing;
    if (claims_.evicted) results_.push_back(compare("evicted", *claims_.evicted, {}));
    add("output", claims_.output, nothing, nothing);
    judge_no_metrics();
  }
  void judge_no_metrics() {
    const Matrix nothing;
    add("kept_mass", claims_.kept_mass, nothing, nothing);
    add("bound", claims_.bound, nothing, nothing);
    add("perturbation", claims_.perturbation, nothing, nothing);
    add("layer_perturbation", claims_.layer_perturbation, nothing, nothing);
  }

  MatrixView step_queries(int64_t g, int64_t t) const {
    return layer_.shape.group_rows(layer_.step(t).queries, g);
  }

  void judge_output() {
    const RealClaim& claim = *claims_.output;
    std::vector<double> expected(claim.numbers.size()), bounds(claim.numbers.size());
    for_each_step(record_, [&](int64_t t, int64_t g, const Positions& cached) {
      const MatrixView queries = step_queries(g, t);
      const Matrix keys = reference::rows_of(layer_.keys.slice(g), cached),
                   values = reference::rows_of(layer_.values.slice(g), cached);
      const int64_t first = (t * shape_.query_heads + g * group_size()) * shape_.head_dim;
      judge_attention(queries, keys, values, std::span(expected).subspan(first),
                      std::span(bounds).subspan(first));
    });
    add("output", claim, expected, bounds);
  }

  // Calls piece(step, KV head, positions in its cache when the step's queries attend), in parallel.
  template <class Piece>
  void for_each_step(const LayerRecord& record, const Piece& piece) const {
    // Consecutive steps per work item, which first replays the cache up to its first step.
    constexpr int64_t kBlock = 32;
    const int64_t blocks = (implementation_.steps + kBlock - 1) / kBlock;
    reference::parallel_for(blocks * shape_.kv_heads, [&](int64_t i) {
      const int64_t g = i % shape_.kv_heads, first = i / shape_.kv_heads * kBlock;
      reference::CachePositions positions(record.prompt, g, layer_.prompt_tokens);
      for (int64_t t = first; t < std::min(first + kBlock, implementation_.steps); ++t) {
        piece(t, g, positions.at(record.steps, t));
      }
    });
  }

  void judge_metrics() {
    const Matrix norms = all_norms();
    const LayerMetrics metrics = measured(record_, norms);
    const Matrix norm_errors = norm_errors_of(norms);
    const Matrix row_norms = reference::projection_row_norms(layer_.output_projection, shape_.head_dim);
    Matrix mass(implementation_.steps, shape_.query_heads), bound = mass, perturbation = mass, terms = mass;
    for_each_step(record_, [&](int64_t t, int64_t g, const Positions& cached) {
      const std::vector<reference::PerturbationErrors> errors =
          step_errors(t, g, cached, norms, norm_errors, row_norms);
      for (int64_t i = 0; i < group_size(); ++i) {
        const int64_t h = g * group_size() + i;
        const reference::PerturbationErrors& error = errors[i];
        mass(t, h) = error.kept_mass;
        bound(t, h) = error.bound;
        perturbation(t, h) = error.perturbation;
        terms(t, h) = error.terms;
      }
    });
    add("kept_mass", claims_.kept_mass, metrics.kept_mass, mass);
    if (metrics.bound) add("bound", claims_.bound, *metrics.bound, bound);
    add("perturbation", claims_.perturbation, metrics.perturbation, perturbation);
    if (claims_.layer_perturbation) {
      add("layer_perturbation", *claims_.layer_perturbation, metrics.layer_perturbation,
          layer_errors(perturbation, terms));
    }
  }

  // The teacher-forced choices in the form in which a session records them.
  LayerRecord teacher_forced_record() const {
    LayerRecord record;
    record.prompt.kept = teacher_forced_;
    record.steps.resize(implementation_.steps);
    for (size_t t = 0; evicts_ && t < record.steps.size(); ++t) {
      for (const std::vector<int64_t>& head : evicted_) record.steps[t].evicted.push_back(head[t]);
    }
    return record;
  }

  // Metrics of a record, by the same code that measures every replay.
  LayerMetrics measured(const LayerRecord& record, const Matrix& norms) const {
    Matrix prompt_norms(shape_.query_heads, layer_.prompt_tokens);
    for (int64_t h = 0; h < norms.rows(); ++h) {
      std::ranges::copy(norms.row(h).first(layer_.prompt_tokens), prompt_norms.row(h).begin());
    }
    return std::move(measure(layer_, {record}, prompt_norms).front());
  }

  // L1 norms of all projected values, [query_heads, n + T].
  Matrix all_norms() const {
    return reference::projected_value_norms(shape_, layer_.values, layer_.output_projection, Norm::l1);
  }

  Matrix norm_errors_of(const Matrix& norms) const {
    return reference::projected_value_norm_errors(shape_, layer_.values, layer_.output_projection, Norm::l1,
                                                  norms, implementation_.arithmetic.norms(Norm::l1));
  }

  // Error bounds of one step's metrics, per query head of the group. cached: positions in the cache.
  std::vector<reference::PerturbationErrors> step_errors(int64_t t, int64_t g, const Positions& cached,
                                                         const Matrix& norms, const Matrix& norm_errors,
                                                         const Matrix& row_norms) const {
    const int64_t tokens = layer_.prompt_tokens + t + 1;
    const Matrix keys = reference::rows_of(layer_.keys.slice(g), cached),
                 values = reference::rows_of(layer_.values.slice(g), cached);
    const auto group = [&](MatrixView rows) { return layer_.shape.group_rows(rows, g); };
    reference::PerturbationCase given;
    given.queries = step_queries(g, t);
    given.keys = layer_.keys.slice(g).middle_rows(0, tokens);
    given.values = layer_.values.slice(g).middle_rows(0, tokens);
    given.scale = layer_.scale;
    given.kept = cached;
    given.kept_keys = keys;
    given.kept_values = values;
    given.norms = group(norms).middle_cols(0, tokens);
    given.norm_errors = group(norm_errors).middle_cols(0, tokens);
    given.projection_norms = group(row_norms);
    given.model_dim = shape_.model_dim;
    return reference::perturbation_errors(given, implementation_.arithmetic.attention);
  }

  // Error bounds of ||sum_h (o_h - o^_h) W_h||_1, [steps]: the heads' own errors, plus the rounding of one sum over the
  // products of all heads.
  std::vector<double> layer_errors(const Matrix& perturbation, const Matrix& terms) const {
    std::vector<double> errors;
    for (int64_t t = 0; t < perturbation.rows(); ++t) {
      const double own = std::accumulate(perturbation.row(t).begin(), perturbation.row(t).end(), 0.0);
      const double all = std::accumulate(terms.row(t).begin(), terms.row(t).end(), 0.0);
      errors.push_back(own +
                       reference::sum_rounding(shape_.query_heads * shape_.head_dim + shape_.query_heads,
                                               implementation_.arithmetic.attention) *
                           all);
    }
    return errors;
  }

  const traces::Layer& layer_;
  const LayerShape shape_;
  TestedImplementation implementation_;
  const LayerClaims& claims_;
  const LayerView prompt_;
  const AllocationJudgement allocation_;
  const PromptRecord reference_;
  const bool evicts_, merges_;
  std::optional<PromptErrors> errors_;
  std::vector<Positions> teacher_forced_;  // per KV head: the kept set that the replay continues with
  std::vector<Positions> evicted_;         // per KV head: the position evicted at each step, likewise
  LayerRecord record_;  // kept sets and evictions, filled where numbers of decode steps are judged
  std::vector<TensorAgreement> results_;
};

}  // namespace

std::vector<TensorAgreement> agreement(const traces::Layer& layer, const TestedImplementation& implementation,
                                       const LayerClaims& claims) {
  return LayerJudge(layer, implementation, claims).judge();
}

}  // namespace kvbound::sim
