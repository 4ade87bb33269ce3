#include "replay.hpp"

#include <chrono>
#include <map>
#include <type_traits>
#include <utility>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/session.hpp>

#include "backend.hpp"

namespace kvbound::sim {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Compresses one layer's prompt and takes its decode steps.
LayerRecord run_layer(Session& session, const traces::Layer& layer, const Scope& scope, RunResult& result) {
  const std::vector<int64_t> budgets(static_cast<size_t>(layer.shape.kv_heads), result.entries);
  LayerRecord record;
  const Clock::time_point start = Clock::now();
  record.prompt = session.compress(layer.prompt(), result.run.policy.policy, budgets);
  result.compress_seconds += seconds_since(start);
  const Clock::time_point steps_start = Clock::now();
  for (int64_t t = 0; t < scope.steps; ++t) record.steps.push_back(session.step(layer.step(t)));
  result.step_seconds += seconds_since(steps_start);
  return record;
}

// Does a run's record hold L1 norms that the reference computed?
bool has_reference_norms(const Run& run, const PromptRecord& prompt) {
  const auto norm_of = []<class Selection>(const Selection& selection) {
    if constexpr (std::is_base_of_v<TwoStage, Selection>) return selection.norm;
    return Norm::l1;
  };
  return run.backend == "reference" && prompt.projected_value_norms &&
         std::visit(norm_of, run.policy.policy.selection) == Norm::l1;
}

MatrixView reference_norms(const std::vector<Run>& runs, const std::vector<LayerRecord>& records) {
  for (size_t r = 0; r < runs.size(); ++r) {
    if (has_reference_norms(runs[r], records[r].prompt)) return *records[r].prompt.projected_value_norms;
  }
  return {};
}

}  // namespace

void require_valid(const std::vector<Run>& runs, const traces::TraceInfo& trace) {
  for (const Run& run : runs) {
    try {
      require_backend(run.backend);
      reference::require_valid(run.policy.policy, run.budget.entries(trace.prompt_tokens),
                               trace.prompt_tokens, trace.window_queries);
    } catch (const InvalidPolicy& error) {
      throw InvalidPolicy(trace.path + ": policy '" + run.policy.label + "' at budget " +
                          to_string(run.budget) + ": " + error.what());
    }
  }
}

ReplayResult replay(const traces::Trace& trace, const std::vector<Run>& runs, const Scope& scope,
                    const LayerObserver& observe, const ReplayProgress& progress) {
  require_valid(runs, trace.info());
  ReplayResult result{trace.info(), scope, {}};
  for (const Run& run : runs) {
    result.runs.push_back({run, run.budget.entries(trace.info().prompt_tokens), {}, 0, 0});
  }
  const auto pieces_per_layer = static_cast<int64_t>(runs.size()) + 1;  // measuring is the last piece
  int64_t done = 0;
  const auto advance = [&] {
    ++done;
    if (progress) progress(done, pieces_per_layer * static_cast<int64_t>(scope.layers.size()));
  };
  for (const int64_t l : scope.layers) {
    const traces::Layer layer = trace.read_layer(l);
    std::map<std::string, std::unique_ptr<Session>> sessions;
    std::vector<LayerRecord> records;
    for (RunResult& run : result.runs) {
      std::unique_ptr<Session>& session = sessions[run.run.backend];
      if (!session) session = open_session(run.run.backend);
      records.push_back(run_layer(*session, layer, scope, run));
      advance();
    }
    sessions.clear();
    std::vector<LayerMetrics> metrics = measure(layer, records, reference_norms(runs, records));
    for (size_t r = 0; r < records.size(); ++r) {
      if (observe) observe(r, l, records[r], metrics[r]);
      result.runs[r].layers.push_back(std::move(metrics[r]));
    }
    advance();
  }
  return result;
}

}  // namespace kvbound::sim
