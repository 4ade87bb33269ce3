#include "replay.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/traces/layers_ahead.hpp>
#include <kvbound/traces/messages.hpp>

#include "backend.hpp"

namespace kvbound::sim {
namespace {

// Compresses one layer's prompt and takes its decode steps.
//
// policy   with what its file has of the layer
// entries  the layer's budget per KV head
LayerRecord run_layer(Session& session, const traces::Layer& layer, const Policy& policy, int64_t entries,
                      const Scope& scope, RunResult& result) {
  const std::vector<int64_t> budgets = head_budgets(policy, entries, layer.shape.kv_heads);
  LayerRecord record;
  const Clock::time_point start = Clock::now();
  record.prompt = session.compress(layer.prompt(), policy, budgets);
  result.compress_seconds += seconds_since(start);
  const Clock::time_point steps_start = Clock::now();
  std::vector<StepView> steps;
  for (int64_t t = 0; t < scope.steps; ++t) steps.push_back(layer.step(t));
  record.steps = session.steps(steps);
  result.step_seconds += seconds_since(steps_start);
  return record;
}

// Whether a run's records are compared with the reference's, which ran the same policies.
bool is_held_against_reference(const Run& run, const ReplayResult& result) {
  return run.backend != kReference &&
         std::ranges::count(result.times, kReference, &BackendTimes::backend) > 0;
}

// Compares another backend's record of a layer with the reference, tensor by tensor.
void judge(RunResult& run, const traces::Layer& layer, const Policy& policy, int64_t index,
           const ReplayResult& result, const LayerRecord& record) {
  const Dtype storage = storage_of(run.run.backend, result.trace.storage);
  const int64_t entries = run.layer_entries[index];
  int64_t most = 0;  // entries of a KV head
  for (const std::vector<int64_t>& kept : record.prompt.kept) most = std::max(most, std::ssize(kept));
  const SessionArithmetic arithmetic =
      arithmetic_of(run.run.backend, result.trace.storage, result.trace.shape, result.trace.prompt_tokens,
                    most + result.scope.steps);
  const TestedImplementation implementation{policy,     entries, result.scope.steps,
                                            arithmetic, storage, storage};
  const LayerClaims claims = claims_of(record, accumulation_of(run.run.backend));
  if (!run.agreement) run.agreement.emplace();
  for (TensorAgreement& found : agreement(layer, implementation, claims)) {
    run.agreement->push_back({index, std::move(found)});
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
  Sessions(Dtype storage, bool device_times, std::vector<BackendTimes>& times)
      : storage_(storage), device_times_(device_times), times_(times) {}

  Session& of(const std::string& backend) {
    std::unique_ptr<Session>& session = sessions_[backend];
    const bool timed = device_times_ || backend == kReference;
    if (!session) session = open_session(backend, storage_, timed ? &times_of(backend) : nullptr);
    return *session;
  }

 private:
  OperationTimes& times_of(const std::string& backend) {
    return std::ranges::find(times_, backend, &BackendTimes::backend)->operations;
  }

  Dtype storage_;
  bool device_times_;
  std::vector<BackendTimes>& times_;
  std::map<std::string, std::unique_ptr<Session>> sessions_;
};

// Replays and measures one layer.
void replay_layer(const std::shared_ptr<const traces::Layer>& shared, int64_t index, ReplayResult& result,
                  const GivenFiles& given, const ReplayObserver& observer,
                  const std::function<void()>& advance) {
  const traces::Layer& layer = *shared;
  std::optional<Sessions> sessions(std::in_place, result.trace.storage, result.scope.device_times,
                                   result.times);
  std::vector<LayerRecord> records;
  Matrix reference_norms;
  for (size_t r = 0; r < result.runs.size(); ++r) {
    RunResult& run = result.runs[r];
    const int64_t entries = run.layer_entries[index];
    const Policy policy = given.bound(run.run.policy.policy, shared, entries);
    records.push_back(run_layer(sessions->of(run.run.backend), layer, policy, entries, result.scope, run));
    if (observer.recorded) observer.recorded(r, index, records.back());
    if (is_held_against_reference(run.run, result)) judge(run, layer, policy, index, result, records.back());
    drop_scores(run.run, records.back().prompt, reference_norms);
    advance();
  }
  sessions.reset();
  const auto own = std::ranges::find(result.times, kReference, &BackendTimes::backend);
  OperationTimes* const times = own == result.times.end() ? nullptr : &own->operations;
  std::vector<LayerMetrics> metrics = measure(layer, records, reference_norms, result.scope.recall_of, times);
  for (size_t r = 0; r < records.size(); ++r) {
    if (!records[r].prompt.merges.empty()) {
      const Run& run = result.runs[r].run;
      metrics[r].merges = timed(times, "merge_measurement", [&] {
        return measure_merges(layer, records[r], run.policy.policy, result.scope.merge_bounds,
                              run.backend == kReference);
      });
    }
    if (observer.measured) observer.measured(r, index, metrics[r]);
    result.runs[r].layers.push_back(std::move(metrics[r]));
  }
  advance();
}

}  // namespace

void require_valid(const std::vector<Run>& runs, const traces::TraceInfo& trace, const GivenFacts& facts) {
  for (const Run& run : runs) {
    try {
      require_backend(run.backend);
      const RunBudgets budgets =
          run_budgets(run.policy.policy, run.budget, facts, trace.layers, trace.prompt_tokens);
      kvbound::require_valid(with_facts(run.policy.policy, facts), budgets.entries, trace.prompt_tokens,
                             trace.window_queries);
      require_known_to_backend(run, facts);
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
    RunBudgets budgets = run_budgets(run.policy.policy, run.budget, facts, trace.layers, trace.prompt_tokens);
    result.runs.push_back({run, budgets.entries, std::move(budgets.layer_entries), {}, 0, 0, std::nullopt});
    if (std::ranges::count(result.times, run.backend, &BackendTimes::backend) == 0) {
      result.times.push_back({run.backend, {}});
    }
  }
  return result;
}

ReplayResult replay(const traces::Trace& trace, const std::vector<Run>& runs, const Scope& scope,
                    const ReplayObserver& observer, const ReplayProgress& progress, const GivenFiles& given) {
  const GivenFacts& facts = given.facts();
  require_valid(runs, trace.info(), facts);
  ReplayResult result = empty_result(trace.info(), runs, scope, facts);
  const auto pieces_per_layer = std::ssize(runs) + 1;  // one per run, and one for measuring
  int64_t done = 0;
  const auto advance = [&] {
    ++done;
    if (progress) progress(done, pieces_per_layer * std::ssize(scope.layers));
  };
  const bool on_device = std::ranges::any_of(runs, [](const Run& run) { return run.backend != kReference; });
  traces::LayersAhead layers(trace, scope.layers, {.bits = on_device});
  for (const int64_t l : scope.layers) {
    const auto layer = std::make_shared<const traces::Layer>(layers.next());
    try {
      replay_layer(layer, l, result, given, observer, advance);
    } catch (const NonFinite& error) {
      throw TraceError(trace.info().path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large to compute with: {}", error.what()));
    }
  }
  return result;
}

}  // namespace kvbound::sim
