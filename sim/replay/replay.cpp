#include "replay.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <kvbound/cuda/session/page_rules.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/claims/input_rounding.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/traces/layers_ahead.hpp>
#include <kvbound/traces/messages.hpp>

#include "backend.hpp"
#include "layers_at_once.hpp"

namespace kvbound::sim {
namespace {

// Whether a run's records are compared with the reference's, which ran the same policies.
bool is_held_against_reference(const Run& run, const ReplayResult& result) {
  return run.backend != kReference &&
         std::ranges::count(result.times, kReference, &BackendTimes::backend) > 0;
}

// What computed another backend's record of a layer.
TestedImplementation implementation_of(const RunResult& run, const ReplayResult& result, const Policy& policy,
                                       const traces::Layer& layer, const LayerRecord& record) {
  const Dtype storage = storage_of(run.run.backend, result.trace.storage);
  int64_t most = 0;  // entries of a KV head
  for (const std::vector<int64_t>& kept : record.prompt.kept) most = std::max(most, std::ssize(kept));
  const SessionArithmetic arithmetic =
      arithmetic_of(run.run.backend, result.trace.storage, result.trace.shape, result.trace.prompt_tokens,
                    most + result.scope.steps);
  return {policy, run.entries, result.scope.steps, arithmetic, storage, storage, run.budgets[layer.index]};
}

// Compares another backend's record of a layer with the reference, tensor by tensor.
void judge(RunResult& run, const traces::Layer& layer, const TestedImplementation& implementation,
           const LayerRecord& record) {
  const LayerClaims claims = claims_of(record, accumulation_of(run.run.backend));
  if (!run.agreement) run.agreement.emplace();
  for (TensorAgreement& found : agreement(layer, implementation, claims)) {
    run.agreement->push_back({layer.index, std::move(found)});
  }
}

// Whether a run's record holds L1 norms that the reference computed.
bool has_reference_norms(const Run& run, const PromptRecord& prompt) {
  const SelectionRules selection = rules_of(run.policy.policy.selection);
  return run.backend == kReference && prompt.projected_value_norms && selection.two_stage &&
         selection.two_stage->norm == Norm::l1;
}

// Drops the scores, which only dumps need, but moves the first reference norms out for the measurement.
void drop_scores(const Run& run, PromptRecord& prompt, Matrix& reference_norms) {
  if (reference_norms.rows() == 0 && has_reference_norms(run, prompt)) {
    reference_norms = std::move(*prompt.projected_value_norms);
  }
  prompt.score_positions.clear();
  prompt.score = {};
  prompt.stage_two_score.reset();
  prompt.projected_value_norms.reset();
}

// The sessions of one layer: one per backend, used for all runs on that backend.
class Sessions {
 public:
  Sessions(const Scope& scope, Dtype storage, std::vector<BackendTimes>& times)
      : scope_(scope), storage_(storage), times_(times) {}

  Session& of(const std::string& backend) {
    std::unique_ptr<Session>& session = sessions_[backend];
    const bool timed = scope_.device_times || backend == kReference;
    if (!session)
      session = open_session(backend, storage_, timed ? &times_of(backend) : nullptr, scope_.page_size);
    return *session;
  }

 private:
  OperationTimes& times_of(const std::string& backend) {
    return std::ranges::find(times_, backend, &BackendTimes::backend)->operations;
  }

  const Scope& scope_;
  Dtype storage_;
  std::vector<BackendTimes>& times_;
  std::map<std::string, std::unique_ptr<Session>> sessions_;
};

// One layer while it is replayed.
struct OpenLayer {
  OpenLayer(std::shared_ptr<const traces::Layer> read, ReplayResult& result)
      : layer(std::move(read)),
        sessions(std::in_place, result.scope, result.trace.storage, result.times),
        policies(result.runs.size()),
        records(result.runs.size()) {}

  std::shared_ptr<const traces::Layer> layer;
  std::optional<Sessions> sessions;
  std::vector<Policy> policies;      // [runs], with what their files have of the layer
  std::vector<LayerRecord> records;  // [runs]
};

RunBudgets budgets_of(const Run& run, const traces::TraceInfo& trace, const Scope& scope,
                      const GivenFacts& facts) {
  return run_budgets(run.policy.policy, run.budget, facts,
                     budget_scope(trace, scope.budgeted.empty() ? scope.layers : scope.budgeted));
}

TraceError too_large(const NonFinite& error, const OpenLayer& layer, const ReplayResult& result) {
  return {result.trace.path, -1, fmt::format("layers.{}", layer.layer->index),
          fmt::format("its numbers are too large to compute with: {}", error.what())};
}

class Replay {
 public:
  Replay(ReplayResult& result, const GivenFiles& given, const ReplayObserver& observer,
         const std::function<void()>& advance)
      : result_(result), given_(given), observer_(observer), advance_(advance) {}

  // Replays and measures layers, whose decode steps devices take together.
  void replay(std::span<OpenLayer> layers) {
    for (size_t r = 0; r < result_.runs.size(); ++r) {
      const Run& run = result_.runs[r].run;
      if (run.backend == kReference) continue;
      record(r, layers);
      if (observer_.recorded || is_held_against_reference(run, result_)) continue;
      Matrix unwanted;
      for (OpenLayer& layer : layers) drop_scores(run, layer.records[r].prompt, unwanted);
    }
    for (OpenLayer& layer : layers) {
      try {
        measure_layer(layer);
      } catch (const NonFinite& error) {
        throw too_large(error, layer, result_);
      }
    }
  }

 private:
  // Records a run of layers.
  void record(size_t r, std::span<OpenLayer> layers) {
    RunResult& run = result_.runs[r];
    std::vector<SessionSteps> all;
    for (OpenLayer& layer : layers) {
      all.push_back({&compressed(r, layer)});
      for (int64_t t = 0; t < result_.scope.steps; ++t) all.back().views.push_back(layer.layer->step(t));
    }
    const Clock::time_point start = Clock::now();
    try {
      all.front().session->take_together(all);
    } catch (const NonFinite& error) {
      const auto failed =
          std::ranges::find_if(all, [](const SessionSteps& of) { return of.records.empty(); });
      if (failed == all.end()) throw;
      throw too_large(error, layers[static_cast<size_t>(failed - all.begin())], result_);
    }
    run.step_seconds += seconds_since(start);
    for (size_t i = 0; i < all.size(); ++i) layers[i].records[r].steps = std::move(all[i].records);
  }

  // What the measurement needs to know of a run that merges.
  void describe(const RunResult& run, const Policy& policy, const traces::Layer& layer,
                LayerRecord& record) const {
    if (record.prompt.merges.empty()) return;
    record.merge = policy.merge;
    if (run.run.backend == kReference) return;
    record.attention = with_input_rounding(implementation_of(run, result_, policy, layer, record), layer)
                           .arithmetic.attention;
  }

  // The session of a layer whose prompt is compressed for a run.
  Session& compressed(size_t r, OpenLayer& layer) {
    RunResult& run = result_.runs[r];
    const std::vector<int64_t>& shared = run.budgets[layer.layer->index];
    Session& session = layer.sessions->of(run.run.backend);
    layer.policies[r] = given_.bound(run.run.policy.policy, layer.layer, shared.front());
    const std::vector<int64_t> budgets = layer_budgets(layer.policies[r], shared);
    const Clock::time_point start = Clock::now();
    try {
      layer.records[r].prompt = session.compress(layer.layer->prompt(), layer.policies[r], budgets);
    } catch (const NonFinite& error) {
      throw too_large(error, layer, result_);
    }
    run.compress_seconds += seconds_since(start);
    advance_();
    return session;
  }

  // Records the reference's runs of a layer, and measures all.
  void measure_layer(OpenLayer& open) {
    const traces::Layer& layer = *open.layer;
    const int64_t index = layer.index;
    Matrix reference_norms;
    for (size_t r = 0; r < result_.runs.size(); ++r) {
      RunResult& run = result_.runs[r];
      if (run.run.backend == kReference) record(r, {&open, 1});
      LayerRecord& recorded = open.records[r];
      if (observer_.recorded) observer_.recorded(r, index, recorded);
      if (is_held_against_reference(run.run, result_))
        judge(run, layer, implementation_of(run, result_, open.policies[r], layer, recorded), recorded);
      describe(run, open.policies[r], layer, recorded);
      drop_scores(run.run, recorded.prompt, reference_norms);
    }
    open.sessions.reset();
    const auto own = std::ranges::find(result_.times, kReference, &BackendTimes::backend);
    OperationTimes* const times = own == result_.times.end() ? nullptr : &own->operations;
    std::vector<LayerMetrics> metrics = measure(layer, open.records, reference_norms, result_.scope.recall_of,
                                                times, result_.scope.centred_bound);
    for (size_t r = 0; r < open.records.size(); ++r) {
      if (!open.records[r].prompt.merges.empty()) {
        const Run& run = result_.runs[r].run;
        metrics[r].merges = timed(times, "merge_measurement", [&] {
          return measure_merges(layer, open.records[r], run.policy.policy, result_.scope.merge_bounds,
                                run.backend == kReference);
        });
      }
      if (observer_.measured) observer_.measured(r, index, metrics[r]);
      result_.runs[r].layers.push_back(std::move(metrics[r]));
    }
    open.records.clear();
    advance_();
  }

  ReplayResult& result_;
  const GivenFiles& given_;
  const ReplayObserver& observer_;
  const std::function<void()>& advance_;
};

}  // namespace

void require_valid(const std::vector<Run>& runs, const traces::TraceInfo& trace, const Scope& scope,
                   const GivenFacts& facts) {
  for (const Run& run : runs) {
    try {
      require_backend(run.backend);
      budgets_of(run, trace, scope, facts);
      require_known_to_backend(run, facts);
      if (scope.page_size > 0 && run.backend != kReference)
        cuda::require_pageable(run.policy.policy, scope.page_size);
    } catch (const InvalidPolicy& error) {
      throw InvalidPolicy(without_middle(trace.path) + ": policy " + traces::quoted(run.policy.label) +
                          " at budget " + to_string(run.budget) + ": " + error.what());
    }
  }
}

ReplayResult empty_result(const traces::TraceInfo& trace, const std::vector<Run>& runs, const Scope& scope,
                          const GivenFacts& facts) {
  ReplayResult result{trace, scope, {}, {}};
  for (const Run& run : with_names(runs, facts)) {
    RunBudgets budgets = budgets_of(run, trace, scope, facts);
    result.runs.push_back({run, budgets.entries, std::move(budgets.heads), {}, 0, 0, std::nullopt});
    if (std::ranges::count(result.times, run.backend, &BackendTimes::backend) == 0) {
      result.times.push_back({run.backend, {}});
    }
  }
  return result;
}

ReplayResult replay(const traces::Trace& trace, const std::vector<Run>& runs, const Scope& scope,
                    const ReplayObserver& observer, const ReplayProgress& progress, const GivenFiles& given) {
  const GivenFacts& facts = given.facts();
  require_valid(runs, trace.info(), scope, facts);
  ReplayResult result = empty_result(trace.info(), runs, scope, facts);
  const auto pieces_per_layer = std::ssize(runs) + 1;  // one per run, and one for measuring
  int64_t done = 0;
  const std::function<void()> advance = [&] {
    ++done;
    if (progress) progress(done, pieces_per_layer * std::ssize(scope.layers));
  };
  const bool on_device = std::ranges::any_of(runs, [](const Run& run) { return run.backend != kReference; });
  traces::LayersAhead layers(trace, scope.layers, {.bits = on_device});
  Replay replay(result, given, observer, advance);
  // What files and methods give is kept of one layer at a time.
  const int64_t at_once =
      given.facts().empty() ? layers_at_once(trace.info(), runs, scope.steps, scope.page_size) : 1;
  for (int64_t left = std::ssize(scope.layers); left > 0; left -= at_once) {
    std::vector<OpenLayer> open;
    for (int64_t l = 0; l < std::min(left, at_once); ++l) {
      open.emplace_back(std::make_shared<const traces::Layer>(layers.next()), result);
    }
    replay.replay(open);
  }
  return result;
}

}  // namespace kvbound::sim
