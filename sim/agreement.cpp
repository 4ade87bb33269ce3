#include "agreement.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <variant>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/critical_kv.hpp>
#include <kvbound/reference/parallel.hpp>
#include <kvbound/reference/perturbation_errors.hpp>
#include <kvbound/reference/session.hpp>
#include <kvbound/reference/snap_kv.hpp>

#include "forced_cache.hpp"
#include "input_rounding.hpp"
#include "kept_agreement.hpp"
#include "left_agreement.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

Positions even_offsets(int64_t heads, int64_t entries) {
  Positions offsets;
  for (int64_t g = 0; g <= heads; ++g) offsets.push_back(g * entries);
  return offsets;
}

// The claimant's arithmetic with what storing this layer's numbers cost.
Claimant with_input_rounding(Claimant claimant, const traces::Layer& layer) {
  const InputRounding rounding = input_rounding(layer, claimant.storage);
  OperationArithmetic& operations = claimant.arithmetic;
  for (reference::Arithmetic* arithmetic :
       {&operations.window_attention, &operations.projected_value_norms, &operations.attention}) {
    arithmetic->input = std::max(arithmetic->input, rounding.relative);
    arithmetic->input_floor = rounding.floor;
  }
  return claimant;
}

// Judges one layer's claims, tensor by tensor.
class LayerJudge {
 public:
  LayerJudge(const traces::Layer& layer, const Claimant& claimant, const LayerClaims& claims)
      : layer_(layer),
        shape_(layer.shape),
        claimant_(with_input_rounding(claimant, layer)),
        claims_(claims),
        prompt_(layer.prompt()),
        reference_(reference::make_session()->compress(
            prompt_, claimant.policy,
            Positions(static_cast<size_t>(layer.shape.kv_heads), claimant.entries))),
        evicts_(evicts(claimant.policy.host)) {}

  std::vector<TensorAgreement> judge() {
    judge_prompt();
    if (claimant_.steps == 0) {
      judge_no_steps();
      return std::move(results_);
    }
    const bool follows = claims_.output || wants_metrics();
    if (evicts_ && (claims_.left || follows)) judge_departures();
    if (follows) {
      for (size_t g = 0; g < forced_.size(); ++g) {
        caches_.emplace_back(layer_, static_cast<int64_t>(g), forced_[g],
                             evicts_ ? left_[g] : std::vector<int64_t>());
      }
    }
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

  // All up to who is kept.
  void judge_prompt() {
    if (claims_.score_positions) {
      results_.push_back(compare("score_positions", *claims_.score_positions, reference_.score_positions));
    }
    const bool scores_wanted = claims_.score || claims_.stage_two_score || claims_.projected_value_norms ||
                               claims_.kept || (evicts_ && claimant_.steps > 0);
    if (scores_wanted) errors_.emplace(prompt_, claimant_, reference_);
    if (claims_.score) add("score", claims_.score, reference_.score, errors_->score);
    if (claims_.projected_value_norms) {
      add("projected_value_norms", claims_.projected_value_norms, *reference_.projected_value_norms,
          errors_->norms);
    }
    if (claims_.stage_two_score) {
      add("stage_two_score", claims_.stage_two_score, *reference_.stage_two_score, errors_->stage_two_score);
    }
    if (claims_.kept_offsets) {
      results_.push_back(
          compare("kept_offsets", *claims_.kept_offsets, even_offsets(shape_.kv_heads, claimant_.entries)));
    }
    forced_ = reference_.kept;
    if (claims_.kept)
      results_.push_back(judge_kept(prompt_, claimant_, reference_, *errors_, *claims_.kept, forced_));
  }

  // Who left at which step.
  void judge_departures() {
    LeftJudgement judgement = judge_left(layer_, claimant_, reference_, *errors_, forced_, claims_.left);
    left_ = std::move(judgement.forced);
    if (claims_.left) results_.push_back(std::move(judgement.agreement));
  }

  // Tensors without elements, which are neither right nor wrong.
  void judge_no_steps() {
    const Matrix nothing;
    if (claims_.left) results_.push_back(compare("left", *claims_.left, {}));
    add("output", claims_.output, nothing, nothing);
    add("kept_mass", claims_.kept_mass, nothing, nothing);
    add("bound", claims_.bound, nothing, nothing);
    add("perturbation", claims_.perturbation, nothing, nothing);
    add("layer_perturbation", claims_.layer_perturbation, nothing, nothing);
  }

  MatrixView step_queries(int64_t g, int64_t t) const {
    return layer_.step(t).queries.middle_rows(g * group_size(), group_size());
  }

  void judge_output() {
    const RealClaim& claim = *claims_.output;
    std::vector<double> expected(claim.numbers.size()), bounds(claim.numbers.size());
    for_each_step([&](int64_t t, int64_t g) {
      const ForcedCache& cache = caches_[static_cast<size_t>(g)];
      const Positions residents = cache.residents(t);
      const MatrixView queries = step_queries(g, t);
      const Matrix keys = cache.keys(residents), values = cache.values(residents);
      const Matrix output = reference::attention(queries, keys, values, layer_.scale).output;
      const Matrix errors =
          reference::attention_errors(queries, keys, values, layer_.scale, {}, claimant_.arithmetic.attention)
              .output;
      const int64_t first = (t * shape_.query_heads + g * group_size()) * shape_.head_dim;
      std::ranges::copy(output.numbers(), expected.begin() + first);
      std::ranges::copy(errors.numbers(), bounds.begin() + first);
    });
    add("output", claim, expected, bounds);
  }

  // piece(step, KV head), in parallel.
  template <class Piece>
  void for_each_step(const Piece& piece) const {
    reference::parallel_for(claimant_.steps * shape_.kv_heads,
                            [&](int64_t i) { piece(i / shape_.kv_heads, i % shape_.kv_heads); });
  }

  void judge_metrics() {
    const Matrix norms = all_norms();
    const LayerMetrics metrics = measured(norms);
    const Matrix norm_errors =
        reference::projected_value_norm_errors(shape_, layer_.values, layer_.output_projection, Norm::l1,
                                               norms, claimant_.arithmetic.projected_value_norms);
    const Matrix row_norms = reference::projection_row_norms(layer_.output_projection, shape_.head_dim);
    Matrix mass(claimant_.steps, shape_.query_heads), bound = mass, perturbation = mass, terms = mass;
    for_each_step([&](int64_t t, int64_t g) {
      const std::vector<reference::PerturbationErrors> errors =
          step_errors(t, g, norms, norm_errors, row_norms);
      for (int64_t i = 0; i < group_size(); ++i) {
        const int64_t h = g * group_size() + i;
        const reference::PerturbationErrors& error = errors[static_cast<size_t>(i)];
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

  // The forced cache's figures, by the code that measures every replay.
  LayerMetrics measured(const Matrix& norms) const {
    LayerRecord record;
    record.prompt.kept = forced_;
    record.steps.resize(static_cast<size_t>(claimant_.steps));
    for (size_t t = 0; evicts_ && t < record.steps.size(); ++t) {
      for (const std::vector<int64_t>& head : left_) record.steps[t].left.push_back(head[t]);
    }
    Matrix prompt_norms(shape_.query_heads, layer_.prompt_tokens);
    for (int64_t h = 0; h < norms.rows(); ++h) {
      std::ranges::copy(norms.row(h).first(static_cast<size_t>(layer_.prompt_tokens)),
                        prompt_norms.row(h).begin());
    }
    return std::move(measure(layer_, {record}, prompt_norms).front());
  }

  // L1 norms of all projected values, [query_heads, n + T].
  Matrix all_norms() const {
    return reference::projected_value_norms(shape_, layer_.values, layer_.output_projection, Norm::l1);
  }

  std::vector<reference::PerturbationErrors> step_errors(int64_t t, int64_t g, const Matrix& norms,
                                                         const Matrix& norm_errors,
                                                         const Matrix& row_norms) const {
    const ForcedCache& cache = caches_[static_cast<size_t>(g)];
    const int64_t tokens = layer_.prompt_tokens + t + 1;
    const Positions residents = cache.residents(t);
    const Matrix keys = cache.keys(residents), values = cache.values(residents);
    const auto group = [&](MatrixView rows) { return rows.middle_rows(g * group_size(), group_size()); };
    reference::PerturbationCase given;
    given.queries = step_queries(g, t);
    given.keys = layer_.keys.slice(g).middle_rows(0, tokens);
    given.values = layer_.values.slice(g).middle_rows(0, tokens);
    given.scale = layer_.scale;
    given.kept = residents;
    given.kept_keys = keys;
    given.kept_values = values;
    given.norms = group(norms).middle_cols(0, tokens);
    given.norm_errors = group(norm_errors).middle_cols(0, tokens);
    given.projection_norms = group(row_norms);
    given.model_dim = shape_.model_dim;
    return reference::perturbation_errors(given, claimant_.arithmetic.attention);
  }

  // || sum_h (o_h - o^_h) ||: the heads' errors, and one sum over all heads' products.
  std::vector<double> layer_errors(const Matrix& perturbation, const Matrix& terms) const {
    std::vector<double> errors;
    for (int64_t t = 0; t < perturbation.rows(); ++t) {
      const double own = std::accumulate(perturbation.row(t).begin(), perturbation.row(t).end(), 0.0);
      const double all = std::accumulate(terms.row(t).begin(), terms.row(t).end(), 0.0);
      errors.push_back(own +
                       reference::sum_rounding(shape_.query_heads * shape_.head_dim + shape_.query_heads,
                                               claimant_.arithmetic.attention) *
                           all);
    }
    return errors;
  }

  const traces::Layer& layer_;
  const LayerShape shape_;
  const Claimant claimant_;
  const LayerClaims& claims_;
  const LayerView prompt_;
  const PromptRecord reference_;
  const bool evicts_;
  std::optional<PromptErrors> errors_;
  std::vector<Positions> forced_;  // per KV head: who was kept, by the claimant's own account
  std::vector<Positions> left_;    // per KV head: who left at each step, likewise
  std::vector<ForcedCache> caches_;
  std::vector<TensorAgreement> results_;
};

}  // namespace

const std::vector<std::string>& tensor_names() {
  static const std::vector<std::string> names{"score_positions",
                                              "score",
                                              "projected_value_norms",
                                              "stage_two_score",
                                              "kept_offsets",
                                              "kept",
                                              "left",
                                              "output",
                                              "kept_mass",
                                              "bound",
                                              "perturbation",
                                              "layer_perturbation"};
  return names;
}

std::vector<TensorAgreement> agreement(const traces::Layer& layer, const Claimant& claimant,
                                       const LayerClaims& claims) {
  return LayerJudge(layer, claimant, claims).judge();
}

}  // namespace kvbound::sim
