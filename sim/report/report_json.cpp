#include <cmath>

#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/summary.hpp>

#include "agreement_report.hpp"
#include "json.hpp"
#include "report.hpp"

namespace kvbound::sim {
namespace {

Json mean(const Mean& mean) { return {{"mean", json_number(mean.value())}, {"undefined", mean.undefined}}; }

Json place(const std::optional<Place>& place) {
  if (!place) return {};
  return {{"layer", place->layer}, {"step", place->step}, {"query_head", place->query_head}};
}

// The place of a merge; its step is null at the prompt's end.
Json merge_place(const std::optional<Place>& place) {
  if (!place) return {};
  const Json step = place->step < 0 ? Json() : Json(place->step);
  return {{"layer", place->layer}, {"step", step}, {"query_head", place->query_head}};
}

// The ratio part / whole.
Json share(int64_t part, int64_t whole) {
  return json_number(ratio(static_cast<double>(part), static_cast<double>(whole)));
}

Json later(const std::optional<LaterSummary>& summary) {
  if (!summary) return {};
  const bool bounded = !summary->joint_bound.values.empty();
  return {{"perturbation", json_number(summary->perturbation.value())},
          {"sag", json_number(summary->sag.value())},
          {"predicted", summary->predicted},
          {"predictable", summary->predictable},
          {"share_predictable", share(summary->predictable, summary->predicted)},
          {"prediction_error", json_number(summary->prediction_error.value())},
          {"value_distance", json_number(summary->value_distance.value())},
          {"bound", json_number(summary->bound.value())},
          {"shared_bound", json_number(summary->shared_bound.value())},
          {"joint_bound", json_number(summary->joint_bound.value())},
          {"violations", bounded ? Json(summary->violations) : Json()},
          {"first_violation", place(summary->first_violation)}};
}

Json merges(const Summary& summary) {
  if (!summary.merges) return {};
  const MergeSummary& merges = *summary.merges;
  const MergeCounts& counts = merges.counts;
  return {{"leaving", counts.leaving},
          {"merged", counts.merged},
          {"share_merged", share(counts.merged, counts.leaving)},
          {"groups", counts.clusters},
          {"zip_singular", counts.singular},
          {"zip_negative", counts.negative},
          {"zip_far", counts.far},
          {"perturbation", json_number(merges.perturbation.value())},
          {"max_perturbation", json_number(merges.max_perturbation)},
          {"group_merged", json_number(merges.cluster_merged.value())},
          {"group_evicted", json_number(merges.cluster_evicted.value())},
          {"group_floor", json_number(merges.cluster_floor.value())},
          {"lossless", merges.lossless},
          {"violations", merges.lossless > 0 ? Json(merges.violations) : Json()},
          {"first_violation", merge_place(merges.first_violation)},
          {"later", later(summary.later)}};
}

Json stage_one(const Summary& summary) {
  const Mean& mass = summary.stage_one_mass;
  if (mass.count == 0) return {};
  return {
      {"mean", json_number(mass.value())},
      {"share_at_most_half", static_cast<double>(summary.stage_one_low) / static_cast<double>(mass.count)}};
}

Json improvement(const RunResult& run, const RunResult* base) {
  if (!base) return {};
  const ImprovedHeads heads = improved_heads(run, *base);
  return {
      {"base", canonical(base->run.policy.policy)},
      {"improved", heads.improved},
      {"heads", heads.heads},
      {"share", json_number(ratio(static_cast<double>(heads.improved), static_cast<double>(heads.heads)))}};
}

// The mean over steps per query head, of what is defined of figure(step, head).
template <class Figure>
Json head_means(const Matrix& like, Figure figure) {
  Json means = Json::array();
  for (int64_t h = 0; h < like.cols(); ++h) {
    Mean mean;
    for (int64_t t = 0; t < like.rows(); ++t) mean.add(figure(t, h));
    means.push_back(json_number(mean.value()));
  }
  return means;
}

Json head_means(const Matrix& matrix) {
  return head_means(matrix, [&](int64_t t, int64_t h) { return matrix(t, h); });
}

Json head_tightness(const LayerMetrics& metrics) {
  if (!metrics.bound) return {};
  return head_means(metrics.perturbation, [&](int64_t t, int64_t h) {
    return ratio(metrics.perturbation(t, h), (*metrics.bound)(t, h));
  });
}

// The share of steps in which stage one has at most half of the attention, per query head.
Json head_stage_one_low(const LayerMetrics& metrics) {
  if (!metrics.stage_one_mass) return {};
  const Matrix& mass = *metrics.stage_one_mass;
  return head_means(mass, [&](int64_t t, int64_t h) { return mass(t, h) <= 0.5 ? 1.0 : 0.0; });
}

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(json_number(value));
  return list;
}

// A layer's merges: the change for each query head at each time, and means over the steps of the effect on later
// queries.
Json layer_merges(const LayerMetrics& metrics) {
  if (!metrics.merges) return {};
  Json changes = Json::array();
  for (const MergeChange& change : metrics.merges->changes) {
    changes.push_back({{"step", change.step < 0 ? Json() : Json(change.step)},
                       {"query_head", change.query_head},
                       {"perturbation", json_number(change.perturbation)},
                       {"rounding", json_number(change.rounding)}});
  }
  Json per_head;
  if (const std::optional<LaterQueries>& later = metrics.merges->later) {
    per_head = {{"perturbation", head_means(later->perturbation)}, {"sag", head_means(later->sag)}};
  }
  return {{"changes", changes}, {"later", per_head}};
}

// One layer's metrics: means over steps per query head; those of the whole layer step by step.
Json layer(int64_t index, int64_t entries, const LayerMetrics& metrics) {
  return {{"layer", index},
          {"entries", entries},
          {"kept", metrics.kept},
          {"perturbation", head_means(metrics.perturbation)},
          {"relative", head_means(metrics.relative)},
          {"bound", metrics.bound ? head_means(*metrics.bound) : Json()},
          {"tightness", head_tightness(metrics)},
          {"kept_mass", head_means(metrics.kept_mass)},
          {"stage_one_mass", metrics.stage_one_mass ? head_means(*metrics.stage_one_mass) : Json()},
          {"stage_one_at_most_half", head_stage_one_low(metrics)},
          {"layer_perturbation", numbers(metrics.layer_perturbation)},
          {"layer_relative", numbers(metrics.layer_relative)},
          {"recall", numbers(metrics.recall)},
          {"merges", layer_merges(metrics)}};
}

Json agreement(const RunResult& run) {
  if (!run.agreement) return {};
  Json tensors = Json::array();
  for (const JudgedTensor& tensor : *run.agreement) tensors.push_back(to_json(tensor));
  return tensors;
}

Json run(const RunResult& run, const ReplayResult& result, const std::optional<Policy>& base) {
  const Summary summary = summarise(run, result.scope);
  Json layers = Json::array();
  for (size_t l = 0; l < run.layers.size(); ++l) {
    const int64_t index = result.scope.layers[l];
    layers.push_back(layer(index, run.layer_entries[index], run.layers[l]));
  }
  return {{"policy", canonical(run.run.policy.policy)},
          {"budget", to_string(run.run.budget)},
          {"entries", run.entries},
          {"backend", run.run.backend},
          {"perturbation", mean(summary.perturbation)},
          {"relative", mean(summary.relative)},
          {"bound", mean(summary.bound)},
          {"tightness", mean(summary.tightness)},
          {"max_tightness", summary.merges ? Json() : json_number(summary.max_tightness)},
          {"tightest", place(summary.tightest)},
          {"violations", summary.merges ? Json() : Json(summary.violations)},
          {"first_violation", place(summary.first_violation)},
          {"kept_mass", mean(summary.kept_mass)},
          {"stage_one_mass", stage_one(summary)},
          {"layer_perturbation", mean(summary.layer_perturbation)},
          {"layer_relative", mean(summary.layer_relative)},
          {"recall", mean(summary.recall)},
          {"merges", merges(summary)},
          {"agreement", agreement(run)},
          {"improved_heads", improvement(run, base_of(run, result, base))},
          {"seconds", {{"compress", run.compress_seconds}, {"steps", run.step_seconds}}},
          {"layers", layers}};
}

Json times(const std::vector<BackendTimes>& backends) {
  Json list = Json::array();
  for (const BackendTimes& backend : backends) {
    Json operations = Json::array();
    for (const OperationTimes::Entry& entry : backend.operations.entries()) {
      operations.push_back(
          {{"operation", entry.operation}, {"calls", entry.calls}, {"seconds", entry.seconds}});
    }
    list.push_back({{"backend", backend.backend}, {"operations", operations}});
  }
  return list;
}

std::string text_of(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

// A trace's text as it stands in the document.
std::string indented(std::string_view text) {
  std::string deeper;
  for (const char c : text) {
    deeper += c;
    if (c == '\n') deeper += "    ";
  }
  return deeper;
}

Json trace(const Report& report, const std::optional<Policy>& base) {
  Json document = trace_json(report.result.trace, report.sha256);
  document["replayed_layers"] = report.result.scope.layers;
  document["replayed_steps"] = report.result.scope.steps;
  document["recall_of"] = report.result.scope.recall_of;
  document["merge_bounds"] = report.result.scope.merge_bounds;
  document["times"] = times(report.result.times);
  document["runs"] = Json::array();
  for (const RunResult& result : report.result.runs)
    document["runs"].push_back(run(result, report.result, base));
  return document;
}

}  // namespace

nlohmann::ordered_json trace_json(const traces::TraceInfo& info, const std::string& sha256) {
  return {{"path", info.path},
          {"sha256", sha256},
          {"model", info.model},
          {"source", info.source},
          {"storage", name(info.storage)},
          {"layers", info.layers},
          {"query_heads", info.shape.query_heads},
          {"kv_heads", info.shape.kv_heads},
          {"head_dim", info.shape.head_dim},
          {"model_dim", info.shape.model_dim},
          {"prompt_tokens", info.prompt_tokens},
          {"decode_tokens", info.decode_tokens},
          {"window_queries", info.window_queries},
          {"scale", info.scale}};
}

std::string JsonReport::beginning(const std::optional<Policy>& base, const Environment& environment) {
  Json document{{"schema", "kvbound-replay-1"}};
  document.update(fields_of(environment));
  document["seed"] = nullptr;  // a replay draws no random numbers
  document["base"] = base ? Json(canonical(*base)) : Json();
  document["traces"] = Json::array();
  const std::string text = text_of(document);
  return text.substr(0, text.rfind(']'));
}

void JsonReport::add(const Report& report) {
  if (has_traces_) write_(",");
  write_(indented(std::string("\n").append(text_of(trace(report, base_)))));
  has_traces_ = true;
}

void JsonReport::finish() { write_(has_traces_ ? "\n  ]\n}\n" : "]\n}\n"); }

}  // namespace kvbound::sim
