#include "rows_report.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/safetensors.hpp>

#include "json.hpp"

namespace kvbound::sim {
namespace {

bool is_wrong(RowVerdict verdict) {
  return verdict == RowVerdict::wrong_a || verdict == RowVerdict::wrong_b ||
         verdict == RowVerdict::both_wrong;
}

// "layers.1.output[3, 0]"; of no layer "out[3, 0]"; of tensors of one row without an index
std::string place(int64_t layer, const std::string& tensor, const std::vector<int64_t>& index) {
  return fmt::format("{}{}{}", layer < 0 ? "" : fmt::format("layers.{}.", layer), tensor,
                     index.empty() ? "" : traces::shape_text(index));
}

std::string ulps_text(double ulps) { return fmt::format("{:.4g}", ulps); }

// One tensor's rows in all layers.
struct TensorTotal {
  std::string tensor;
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

// In the order in which tensors appear.
std::vector<TensorTotal> totals_of(const ComparedRows& compared) {
  std::vector<TensorTotal> totals;
  for (const LayerComparison& layer : compared.layers) {
    for (const TensorRows& part : layer.rows.tensors) {
      auto total = std::ranges::find(totals, part.tensor, &TensorTotal::tensor);
      if (total == totals.end()) total = totals.insert(total, TensorTotal{part.tensor});
      total->add(layer.layer, part);
    }
  }
  return totals;
}

// " (at most 2 ulps apart, 0.5 of the row's largest number)": of all tensors; empty if no rows of real numbers are reordered
std::string distance_text(const ComparedRows& compared) {
  std::optional<double> ulps;
  double row_ulps = 0;
  for (const LayerComparison& layer : compared.layers) {
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

TableRow headings() {
  TableRow row{"tensor", "rows"};
  for (const RowVerdict verdict : kRowVerdicts) row.push_back(word(verdict));
  row.insert(row.end(), {"ulps", "of row", "farthest"});
  return row;
}

TableRow table_row(const TensorTotal& total) {
  TableRow row{total.tensor, std::to_string(total.rows())};
  for (const RowVerdict verdict : kRowVerdicts) row.push_back(std::to_string(total.count(verdict)));
  if (const auto& distances = total.distances) {
    row.insert(row.end(),
               {fmt::format("{} {}", ulps_text(distances->farthest.ulps), name(distances->unit)),
                ulps_text(distances->row_ulps), place(total.layer, total.tensor, distances->farthest.index)});
  } else {
    row.insert(row.end(), {"-", "-", "-"});
  }
  return row;
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
  Json document = Json::object();
  if (layer >= 0) document["layer"] = layer;
  document["tensor"] = rows.tensor;
  document["rows"] = rows.rows();
  for (const RowVerdict verdict : kRowVerdicts) document[member(verdict)] = rows.count(verdict);
  document["distances"] = rows.distances ? to_json(*rows.distances) : Json();
  document["differing"] = Json::array();
  for (const DifferingRow& row : rows.differing) {
    Json differing{{"row", index_of(row.row, rows.extents)}};
    if (layer < 0) differing["row_b"] = index_of(row.row_b, rows.extents_b);
    differing["verdict"] = word(row.verdict);
    differing["ulps"] = json_number(row.ulps);
    differing["row_ulps"] = json_number(row.row_ulps);
    document["differing"].push_back(std::move(differing));
  }
  return document;
}

}  // namespace

int64_t ComparedRows::rows() const {
  return std::accumulate(kRowVerdicts.begin(), kRowVerdicts.end(), int64_t{0},
                         [&](int64_t sum, RowVerdict verdict) { return sum + count(verdict); });
}

int64_t ComparedRows::count(RowVerdict verdict) const {
  int64_t count = 0;
  for (const LayerComparison& layer : layers) {
    for (const TensorRows& tensor : layer.rows.tensors) count += tensor.count(verdict);
  }
  return count;
}

Verdict ComparedRows::verdict(Verdict of_a, Verdict of_b) const {
  const bool same = count(RowVerdict::identical) == rows();
  if (of_a == Verdict::differs || of_b == Verdict::differs || (identical && !same)) return Verdict::differs;
  const bool agree = of_a == Verdict::agrees && of_b == Verdict::agrees && rows() > 0;
  return agree ? Verdict::agrees : Verdict::no_evidence;
}

std::optional<std::string> ComparedRows::first_differing() const {
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

std::string sentence(const ComparedFile& a, const ComparedFile& b, const ComparedRows& compared) {
  std::string text = fmt::format("A {} and B {}: ", one_line(a.path), one_line(b.path));
  if (compared.rows() == 0) return text + "no row is in both";
  text += fmt::format("{} of {} rows identical", compared.count(RowVerdict::identical), compared.rows());
  bool some_wrong = false;
  for (const RowVerdict verdict : kRowVerdicts) {
    const int64_t count = compared.count(verdict);
    if (count == 0 || verdict == RowVerdict::identical) continue;
    text += fmt::format(", {} {}", count, word(verdict));
    if (verdict == RowVerdict::reordered) text += distance_text(compared);
    some_wrong = some_wrong || is_wrong(verdict);
  }
  if (some_wrong) return text;
  const bool of_a = a.verdict == Verdict::differs, of_b = b.verdict == Verdict::differs;
  if (!of_a && !of_b) return text + ", none wrong";
  return text + fmt::format(", none wrong of these, but what {} is", of_a && of_b ? "either has alone"
                                                                     : of_a       ? "A has alone"
                                                                                  : "B has alone");
}

std::string apart_text(const ComparedRows& compared, int64_t heads) {
  int64_t apart = 0;
  std::string first;
  for (const LayerComparison& layer : compared.layers) {
    apart += std::ssize(layer.rows.apart);
    if (!first.empty() || layer.rows.apart.empty()) continue;
    const ApartHead& head = layer.rows.apart.front();
    first = fmt::format("layer {}, KV head {}, from step {} on", layer.layer, head.kv_head, head.first_step);
  }
  if (apart == 0) return "";
  return fmt::format(
      "  {} of {} KV heads of layers hold different entries, the first: {}; what follows there is of another "
      "cache\n",
      apart, heads, first);
}

std::string rows_table(const ComparedRows& compared, const TextStyle& style) {
  if (compared.rows() == 0) return "";
  const std::vector<TensorTotal> totals = totals_of(compared);
  std::vector<TableRow> rows{headings()};
  for (const bool wrong : {true, false}) {
    for (const TensorTotal& total : totals) {
      if (total.has_wrong() == wrong) rows.push_back(table_row(total));
    }
  }
  const auto alarming = [](const std::string& heading, const std::string& cell) {
    return cell != "0" && std::ranges::any_of(kRowVerdicts, [&](RowVerdict verdict) {
             return is_wrong(verdict) && heading == word(verdict);
           });
  };
  return "\n" + table(rows, {.text = style, .alarming = alarming});
}

void add_json(const ComparedRows& compared, Verdict verdict, Json& document) {
  document["identical_required"] = compared.identical;
  document["verdict"] = word(verdict);
  document["apart"] = Json::array();
  document["tensors"] = Json::array();
  for (const LayerComparison& layer : compared.layers) {
    for (const ApartHead& head : layer.rows.apart) {
      Json apart = Json::object();
      if (layer.layer >= 0) apart["layer"] = layer.layer;
      apart["kv_head"] = head.kv_head;
      apart["first_step"] = head.first_step;
      document["apart"].push_back(std::move(apart));
    }
    for (const TensorRows& rows : layer.rows.tensors)
      document["tensors"].push_back(to_json(layer.layer, rows));
  }
}

}  // namespace kvbound::sim
