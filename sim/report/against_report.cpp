#include "against_report.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include <kvbound/traces/layer_list.hpp>

namespace kvbound::sim {
namespace {

// What one dump has and the other lacks.
struct OnlyInOne {
  std::vector<std::string> tensors;
  std::vector<int64_t> layers;
  int64_t first_step = 0, steps = 0;  // steps first_step .. steps - 1

  bool is_any() const { return !tensors.empty() || !layers.empty() || steps > first_step; }
};

OnlyInOne only_in(const DumpInfo& one, const DumpInfo& other) {
  OnlyInOne only{{}, {}, std::min(one.steps, other.steps), one.steps};
  std::ranges::set_difference(one.layers, other.layers, std::back_inserter(only.layers));
  std::ranges::copy_if(one.tensors, std::back_inserter(only.tensors), [&](const std::string& tensor) {
    return std::ranges::find(other.tensors, tensor) == other.tensors.end();
  });
  return only;
}

std::string text_of(char dump, const OnlyInOne& only) {
  if (!only.is_any()) return "";
  std::vector<std::string> parts;
  if (!only.tensors.empty()) parts.push_back(fmt::format("{}", fmt::join(only.tensors, ", ")));
  if (!only.layers.empty()) parts.push_back("layers " + traces::layer_list(only.layers));
  if (only.steps > only.first_step)
    parts.push_back(fmt::format("steps {} to {}", only.first_step, only.steps - 1));
  return fmt::format("  only in {}: {}: judged, but not compared\n", dump, fmt::join(parts, "; "));
}

Json facts_of(const DiffReport& dump, const OnlyInOne& only) {
  Json facts = dump_facts(dump);
  facts["verdict"] = word(dump.verdict());
  facts["only"] = {
      {"tensors", only.tensors}, {"layers", only.layers}, {"steps", only.steps - only.first_step}};
  return facts;
}

}  // namespace

Part against_part(const AgainstReport& report) {
  return {{{"trace", trace_facts(report.a.trace, report.a.trace_sha256)},
           {"a", facts_of(report.a, only_in(report.a.dump, report.b.dump))},
           {"b", facts_of(report.b, only_in(report.b.dump, report.a.dump))},
           {"identical_required", report.compared.identical},
           {"verdict", word(report.verdict())}},
          rows_cubes(report.compared),
          {"tensors"}};
}

std::string text_report(const AgainstReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  const DumpInfo &a = report.a.dump, &b = report.b.dump;
  std::string text = sentence({report.a.dump_path, report.a.verdict()},
                              {report.b.dump_path, report.b.verdict()}, report.compared);
  text += fmt::format("\n  {}; budget {}, {} entries per KV head\n", canonical(a.policy), to_string(a.budget),
                      a.entries);
  text += fmt::format("  A: {}; {}\n  B: {}; {}\n  against {}, {}\n", implementation_text(a),
                      extent_text(report.a), implementation_text(b), extent_text(report.b),
                      one_line(report.a.trace.path), name(report.a.trace.storage));
  text += text_of('A', only_in(a, b)) + text_of('B', only_in(b, a));
  const int64_t heads = std::ssize(report.compared.layers) * report.a.trace.shape.kv_heads;
  return text + apart_text(report.compared, heads) + rows_table(part, style, columns);
}

}  // namespace kvbound::sim
