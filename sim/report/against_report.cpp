#include "against_report.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/diff/claims/dump_tensors.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/safetensors.hpp>

#include "environment.hpp"
#include "json.hpp"
#include "report.hpp"

namespace kvbound::sim {
namespace {

bool is_wrong(RowVerdict verdict) {
  return verdict == RowVerdict::wrong_a || verdict == RowVerdict::wrong_b ||
         verdict == RowVerdict::both_wrong;
}

// "layers.1.output[3, 0]"; of tensors of one row without an index
std::string place(int64_t layer, const std::string& tensor, const std::vector<int64_t>& index) {
  return fmt::format("layers.{}.{}{}", layer, tensor, index.empty() ? "" : traces::shape_text(index));
}

std::string ulps_text(double ulps) { return fmt::format("{:.4g}", ulps); }

// One tensor's rows in all layers.
struct TensorTotal {
  std::array<int64_t, kRowVerdicts.size()> counts = {};
  std::optional<Distances> distances = {};
  int64_t layer = 0;  // of the farthest element

  int64_t count(RowVerdict verdict) const { return counts[static_cast<size_t>(verdict)]; }
  int64_t rows() const { return std::reduce(counts.begin(), counts.end()); }
  bool has_wrong() const {
    return std::ranges::any_of(kRowVerdicts,
                               [&](RowVerdict verdict) { return is_wrong(verdict) && count(verdict) > 0; });
  }

  void add(int64_t of_layer, const TensorRows& part) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += part.counts[i];
    if (!part.distances) return;
    const double row_ulps = std::max(part.distances->row_ulps, distances ? distances->row_ulps : 0);
    if (!distances || distances->farthest.ulps < part.distances->farthest.ulps) {
      distances = part.distances;
      layer = of_layer;
    }
    distances->row_ulps = row_ulps;
  }
};

// nullopt if the dumps do not both have the tensor.
std::optional<TensorTotal> total_of(const AgainstReport& report, const std::string& tensor) {
  std::optional<TensorTotal> total;
  for (const LayerComparison& layer : report.layers) {
    for (const TensorRows& part : layer.rows.tensors) {
      if (part.tensor != tensor) continue;
      if (!total) total.emplace();
      total->add(layer.layer, part);
    }
  }
  return total;
}

// " (at most 2 ulps apart, 0.5 of the row's largest number)": of all tensors; empty if no rows of real numbers are reordered
std::string distance_text(const AgainstReport& report) {
  std::optional<double> ulps;
  double row_ulps = 0;
  for (const LayerComparison& layer : report.layers) {
    for (const TensorRows& tensor : layer.rows.tensors) {
      if (!tensor.distances) continue;
      ulps = std::max(ulps.value_or(0), tensor.distances->farthest.ulps);
      row_ulps = std::max(row_ulps, tensor.distances->row_ulps);
    }
  }
  if (!ulps) return "";
  return fmt::format(" (at most {} ulps apart, {} of the row's largest number)", ulps_text(*ulps),
                     ulps_text(row_ulps));
}

// "A a.safetensors and B b.safetensors: 90 of 112 rows identical, 20 reordered (at most 2 ulps apart, ...), 2 wrong: A"
std::string sentence(const AgainstReport& report) {
  std::string text =
      fmt::format("A {} and B {}: ", one_line(report.a.dump_path), one_line(report.b.dump_path));
  if (report.rows() == 0) return text + "no row is in both";
  text += fmt::format("{} of {} rows identical", report.count(RowVerdict::identical), report.rows());
  bool some_wrong = false;
  for (const RowVerdict verdict : kRowVerdicts) {
    const int64_t count = report.count(verdict);
    if (count == 0 || verdict == RowVerdict::identical) continue;
    text += fmt::format(", {} {}", count, word(verdict));
    if (verdict == RowVerdict::reordered) text += distance_text(report);
    some_wrong = some_wrong || is_wrong(verdict);
  }
  if (some_wrong) return text;
  const bool a = report.a.verdict() == Verdict::differs, b = report.b.verdict() == Verdict::differs;
  if (!a && !b) return text + ", none wrong";
  return text + fmt::format(", none wrong of these, but what {} is", a && b ? "either has alone"
                                                                     : a    ? "A has alone"
                                                                            : "B has alone");
}

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

// Which caches differ, the first by name.
std::string apart_text(const AgainstReport& report) {
  int64_t heads = 0;
  std::string first;
  for (const LayerComparison& layer : report.layers) {
    heads += std::ssize(layer.rows.apart);
    if (!first.empty() || layer.rows.apart.empty()) continue;
    const ApartHead& head = layer.rows.apart.front();
    first = fmt::format("layer {}, KV head {}, from step {} on", layer.layer, head.kv_head, head.first_step);
  }
  if (heads == 0) return "";
  return fmt::format(
      "  {} of {} KV heads of layers hold different entries, the first: {}; what follows there is of another "
      "cache\n",
      heads, std::ssize(report.layers) * report.a.trace.shape.kv_heads, first);
}

TableRow headings() {
  TableRow row{"tensor", "rows"};
  for (const RowVerdict verdict : kRowVerdicts) row.push_back(word(verdict));
  row.insert(row.end(), {"ulps", "of row", "farthest"});
  return row;
}

TableRow table_row(const std::string& tensor, const TensorTotal& total) {
  TableRow row{tensor, std::to_string(total.rows())};
  for (const RowVerdict verdict : kRowVerdicts) row.push_back(std::to_string(total.count(verdict)));
  if (const auto& distances = total.distances) {
    row.insert(row.end(),
               {fmt::format("{} {}", ulps_text(distances->farthest.ulps), name(distances->unit)),
                ulps_text(distances->row_ulps), place(total.layer, tensor, distances->farthest.index)});
  } else {
    row.insert(row.end(), {"-", "-", "-"});
  }
  return row;
}

Json json_of(const OnlyInOne& only) {
  return {{"tensors", only.tensors}, {"layers", only.layers}, {"steps", only.steps - only.first_step}};
}

Json to_json(const Distances& distances) {
  const FarthestElement& farthest = distances.farthest;
  return {{"unit", name(distances.unit)},
          {"ulps", json_number(farthest.ulps)},
          {"row_ulps", json_number(distances.row_ulps)},
          {"index", farthest.index},
          {"value_a", json_number(farthest.a)},
          {"value_b", json_number(farthest.b)}};
}

// The word as the name of a JSON member: "wrong_a" of "wrong: A".
std::string member(RowVerdict verdict) {
  std::string name;
  for (const char c : std::string_view(word(verdict))) {
    if (c != ':') name += c == ' ' ? '_' : static_cast<char>(std::tolower(c));
  }
  return name;
}

Json to_json(int64_t layer, const TensorRows& rows) {
  Json document{{"layer", layer}, {"tensor", rows.tensor}, {"rows", rows.rows()}};
  for (const RowVerdict verdict : kRowVerdicts) document[member(verdict)] = rows.count(verdict);
  document["distances"] = rows.distances ? to_json(*rows.distances) : Json();
  document["differing"] = Json::array();
  for (const DifferingRow& row : rows.differing) {
    document["differing"].push_back({{"row", index_of(row.row, rows.extents)},
                                     {"verdict", word(row.verdict)},
                                     {"ulps", json_number(row.ulps)},
                                     {"row_ulps", json_number(row.row_ulps)}});
  }
  return document;
}

Json to_json(const DiffReport& dump, const OnlyInOne& only) {
  Json document = dump_json(dump);
  document["verdict"] = word(dump.verdict());
  document["only"] = json_of(only);
  return document;
}

}  // namespace

int64_t AgainstReport::rows() const {
  return std::accumulate(kRowVerdicts.begin(), kRowVerdicts.end(), int64_t{0},
                         [&](int64_t sum, RowVerdict verdict) { return sum + count(verdict); });
}

int64_t AgainstReport::count(RowVerdict verdict) const {
  int64_t count = 0;
  for (const LayerComparison& layer : layers) {
    for (const TensorRows& tensor : layer.rows.tensors) count += tensor.count(verdict);
  }
  return count;
}

Verdict AgainstReport::verdict() const {
  const Verdict of_a = a.verdict(), of_b = b.verdict();
  const bool same = count(RowVerdict::identical) == rows();
  if (of_a == Verdict::differs || of_b == Verdict::differs || (identical && !same)) return Verdict::differs;
  const bool agree = of_a == Verdict::agrees && of_b == Verdict::agrees && rows() > 0;
  return agree ? Verdict::agrees : Verdict::no_evidence;
}

std::optional<std::string> AgainstReport::first_differing() const {
  for (const LayerComparison& layer : layers) {
    for (const TensorRows& tensor : layer.rows.tensors) {
      if (tensor.differing.empty()) continue;
      const DifferingRow& row = tensor.differing.front();
      return fmt::format("{}: {}", place(layer.layer, tensor.tensor, index_of(row.row, tensor.extents)),
                         word(row.verdict));
    }
  }
  return std::nullopt;
}

std::string text_report(const AgainstReport& report, const TextStyle& style) {
  const DumpInfo &a = report.a.dump, &b = report.b.dump;
  std::string text = fmt::format("{}\n  {}; budget {}, {} entries per KV head\n", sentence(report),
                                 canonical(a.policy), to_string(a.budget), a.entries);
  text += fmt::format("  A: {}; {}\n  B: {}; {}\n  against {}, {}\n", implementation_text(a),
                      extent_text(report.a), implementation_text(b), extent_text(report.b),
                      one_line(report.a.trace.path), name(report.a.trace.storage));
  text += text_of('A', only_in(a, b)) + text_of('B', only_in(b, a)) + apart_text(report);
  if (report.rows() == 0) return text;
  std::vector<std::pair<std::string, TensorTotal>> totals;
  for (const DumpTensor& tensor : dump_tensors()) {
    if (const auto total = total_of(report, tensor.name)) totals.emplace_back(tensor.name, *total);
  }
  std::vector<TableRow> rows{headings()};
  for (const bool wrong : {true, false}) {
    for (const auto& [tensor, total] : totals) {
      if (total.has_wrong() == wrong) rows.push_back(table_row(tensor, total));
    }
  }
  const auto alarming = [](const std::string& heading, const std::string& cell) {
    return cell != "0" && std::ranges::any_of(kRowVerdicts, [&](RowVerdict verdict) {
             return is_wrong(verdict) && heading == word(verdict);
           });
  };
  return text + "\n" + table(rows, {.text = style, .alarming = alarming});
}

std::string json_report(const AgainstReport& report) {
  Json document{{"schema", "kvbound-against-1"}};
  document.update(fields_of(environment()));
  document["seed"] = nullptr;  // nothing is drawn at random
  document["trace"] = trace_json(report.a.trace, report.a.trace_sha256);
  document["a"] = to_json(report.a, only_in(report.a.dump, report.b.dump));
  document["b"] = to_json(report.b, only_in(report.b.dump, report.a.dump));
  document["identical_required"] = report.identical;
  document["verdict"] = word(report.verdict());
  document["apart"] = Json::array();
  document["tensors"] = Json::array();
  for (const LayerComparison& layer : report.layers) {
    for (const ApartHead& head : layer.rows.apart) {
      document["apart"].push_back(
          {{"layer", layer.layer}, {"kv_head", head.kv_head}, {"first_step", head.first_step}});
    }
    for (const TensorRows& rows : layer.rows.tensors)
      document["tensors"].push_back(to_json(layer.layer, rows));
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
