#include "diff_report.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/sim/diff/agreement_figures.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

using Json = nlohmann::ordered_json;

Json arithmetic_facts(const reference::Arithmetic& arithmetic) {
  return {{"unit", arithmetic.unit},         {"exponential", arithmetic.exponential},
          {"weights", arithmetic.weights},   {"weights_floor", arithmetic.weights_floor},
          {"partials", arithmetic.partials}, {"partials_floor", arithmetic.partials_floor}};
}

}  // namespace

DiffReport diff_report(const traces::Trace& trace, const std::string& sha256, const DumpFile& dump) {
  dump.require_trace(sha256);
  return {trace.info(), sha256, dump.path(), dump.info(), {}};
}

JudgedClaims judge_layer(const traces::Layer& layer, const DumpFile& dump, DiffReport& report) {
  const DumpInfo& info = dump.info();
  const TestedImplementation implementation{dump.policy_of(layer.index),
                                            info.entries,
                                            info.steps,
                                            info.declared.arithmetic(),
                                            info.declared.input_storage(),
                                            info.declared.merged_storage(),
                                            info.budgets[layer.index]};
  JudgedClaims result{dump.read_layer(layer.index), {}, info.steps, info.declared.accumulate};
  try {
    result.judged = judge_layer(layer, implementation, result.claims);
  } catch (const NonFinite& error) {
    throw TraceError(report.trace.path, -1, fmt::format("layers.{}", layer.index),
                     fmt::format("its numbers are too large for double precision: {}", error.what()));
  }
  for (const TensorAgreement& found : result.judged.tensors) {
    TensorAgreement& kept = report.tensors.emplace_back(JudgedTensor{layer.index, found}).agreement;
    kept.outside_at = kept.undecided_at = {};  // of all layers these may be many
    kept.decidable = {};
    for (FunctionalAgreement& functional : kept.functionals)
      functional.outside_at = functional.judged_at = {};
  }
  return result;
}

std::string implementation_text(const DumpInfo& dump) {
  return fmt::format("backend {}; {}", traces::printable(dump.backend), dump.declared.text());
}

std::string extent_text(const DiffReport& report) {
  return fmt::format("{} of {} layers, {} of {} decode steps", report.dump.layers.size(), report.trace.layers,
                     report.dump.steps, report.trace.decode_tokens);
}

Json dump_facts(const DiffReport& report) {
  const DumpInfo& dump = report.dump;
  Json json{{"path", report.dump_path},
            {"policy", canonical(dump.policy)},
            {"budget", to_string(dump.budget)},
            {"entries", dump.entries},
            {"backend", dump.backend}};
  json.update(declared_facts(dump.declared));
  json.update({{"layers", dump.layers}, {"steps", dump.steps}, {"tensors", dump.tensors}});
  return json;
}

Part diff_part(const DiffReport& report) {
  const ChanceVerdict chance = report.by_chance();
  std::vector<TensorSummary> all = report.summaries();
  std::stable_partition(all.begin(), all.end(),
                        [](const TensorSummary& summary) { return !summary.total.agrees(); });
  AgreementCubes cubes;
  cubes.add({}, report.tensors, all);
  Part part{{{"trace", trace_facts(report.trace, report.trace_sha256)},
             {"dump", dump_facts(report)},
             {"arithmetic", arithmetic_facts(report.dump.declared.arithmetic())},
             {"verdict", word(report.verdict())},
             {"chance", chance_facts(chance)}},
            cubes.cubes(),
            {"tensors"}};
  part.cubes.push_back(unlikely_cube(chance));
  return part;
}

std::string text_report(const DiffReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  const DumpInfo& dump = report.dump;
  std::string text = fmt::format("{}\n  {}\n  budget {}, {} entries per KV head; {}\n  against {}: {}, {}\n",
                                 one_line(report.dump_path), canonical(dump.policy), to_string(dump.budget),
                                 dump.entries, implementation_text(dump), one_line(report.trace.path),
                                 extent_text(report), name(report.trace.storage));
  if (dump.tensors.empty()) return text + "  no tensors\n";
  text += "\n" + cube_table(*part.find("agreement"), style, columns);
  std::string notes;
  for (const TensorSummary& summary : report.summaries()) {
    const std::string diagnosis = summary.worst ? diagnosis_text(summary.worst->agreement) : "";
    if (diagnosis.empty()) continue;
    notes += fmt::format("  layers.{}.{}: {}\n", summary.worst->layer, summary.total.tensor, diagnosis);
  }
  const ChanceVerdict chance = report.by_chance();
  for (const UnlikelyOutput& unlikely : chance.found) notes += "  " + text_of(unlikely) + "\n";
  return notes.empty() ? text : text + "\n" + notes;
}

}  // namespace kvbound::sim
