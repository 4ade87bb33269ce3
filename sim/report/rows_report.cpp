#include "rows_report.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/safetensors.hpp>

#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/list_cube.hpp>

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

// " (at most 2 ulps apart, 0.5 of the row's largest number)": of all tensors; empty if no rows of
// real numbers are reordered
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

// The word as the name of a figure: "wrong_a" of "wrong: A".
std::string name_of(RowVerdict verdict) {
  std::string name;
  for (const char c : std::string_view(word(verdict))) {
    if (c != ':') name += c == ' ' ? '_' : static_cast<char>(std::tolower(c));
  }
  return name;
}

double number(int64_t count) { return static_cast<double>(count); }
double layer_number(int64_t layer) { return layer < 0 ? kUndefined : number(layer); }

const Figure kLayer = count_figure("layer", "layer", "the layer's number in dumps, from 0");
const Figure kTensor = text_figure("tensor", "tensor", "the compared tensor's name in dumps");
const Figure kUlps =
    number_figure("ulps",
                  "the largest distance of two elements of reordered rows, in units in the last place of the "
                  "larger one");
const Figure kRowUlps = number_figure("row_ulps", "of row", "the same, in those of the row's largest number");

const std::vector<FigureOf<TensorTotal>>& total_figures() {
  using T = const TensorTotal&;
  static const std::vector<FigureOf<TensorTotal>> kFigures = [] {
    std::vector<FigureOf<TensorTotal>> figures{
        {count_figure("rows", "rows", "rows that both have"), [](T total) { return number(total.rows()); }}};
    for (const RowVerdict verdict : kRowVerdicts) {
      Figure figure =
          count_figure(name_of(verdict), word(verdict), fmt::format("rows that are {}", word(verdict)));
      if (is_wrong(verdict)) figure.alarming = is_not_zero;
      figures.push_back({figure, [verdict](T total) { return number(total.count(verdict)); }});
    }
    const std::vector<FigureOf<TensorTotal>> distances{
        {kUlps, [](T total) { return total.distances ? total.distances->farthest.ulps : kUndefined; }},
        {text_figure("unit", "ulp of", "the coarsest of the tensors' and accumulators' types"),
         [](T total) { return total.distances ? std::string(name(total.distances->unit)) : std::string(); }},
        {kRowUlps, [](T total) { return total.distances ? total.distances->row_ulps : kUndefined; }},
        {text_figure("farthest", "farthest", "where that distance is"),
         [](T total) {
           return total.distances ? place(total.layer, total.tensor, total.distances->farthest.index)
                                  : std::string();
         }},
        {number_figure("value_a", "A", "A's number there", Shown::if_asked),
         [](T total) { return total.distances ? total.distances->farthest.a : kUndefined; }},
        {number_figure("value_b", "B", "B's number there", Shown::if_asked),
         [](T total) { return total.distances ? total.distances->farthest.b : kUndefined; }}};
    figures.insert(figures.end(), distances.begin(), distances.end());
    return figures;
  }();
  return kFigures;
}

struct LayerRow {
  int64_t layer;
  const TensorRows& rows;
  const DifferingRow& row;
};

Cube differing_cube(const ComparedRows& compared) {
  std::vector<LayerRow> subjects;
  for (const LayerComparison& layer : compared.layers) {
    for (const TensorRows& rows : layer.rows.tensors) {
      for (const DifferingRow& row : rows.differing) subjects.push_back({layer.layer, rows, row});
    }
  }
  using R = const LayerRow&;
  return list_cube<LayerRow>(
      "differing", "differing",
      {{kLayer, [](R one) { return layer_number(one.layer); }},
       {kTensor, [](R one) { return one.rows.tensor; }},
       {text_figure("row", "row", "its index in the tensor"),
        [](R one) { return traces::shape_text(index_of(one.row.row, one.rows.extents)); }},
       {text_figure("row_b", "row of B", "its index in B's tensor, where cases of files are compared"),
        [](R one) {
          return one.layer < 0 ? traces::shape_text(index_of(one.row.row_b, one.rows.extents_b))
                               : std::string();
        }}},
      {{text_figure("verdict", "verdict", "which kind of row it is"),
        [](R one) { return std::string(word(one.row.verdict)); }},
       {kUlps, [](R one) { return one.row.ulps.value_or(kUndefined); }},
       {kRowUlps, [](R one) { return one.row.row_ulps.value_or(kUndefined); }}},
      subjects);
}

Cube apart_cube(const ComparedRows& compared) {
  using Apart = std::pair<int64_t, ApartHead>;
  std::vector<Apart> subjects;
  for (const LayerComparison& layer : compared.layers) {
    for (const ApartHead& head : layer.rows.apart) subjects.push_back({layer.layer, head});
  }
  using A = const Apart&;
  return list_cube<Apart>(
      "apart", "apart",
      {{kLayer, [](A one) { return layer_number(one.first); }},
       {count_figure("kv_head", "KV head", "whose caches differ"),
        [](A one) { return number(one.second.kv_head); }}},
      {{count_figure("first_step", "first step", "whose queries attended to different entries"),
        [](A one) { return number(one.second.first_step); }}},
      subjects);
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

std::vector<Cube> rows_cubes(const ComparedRows& compared) {
  const std::vector<TensorTotal> totals = totals_of(compared);
  std::vector<TensorTotal> sorted, by_layer;
  for (const bool wrong : {true, false}) {
    std::ranges::copy_if(totals, std::back_inserter(sorted),
                         [&](const TensorTotal& total) { return total.has_wrong() == wrong; });
  }
  for (const LayerComparison& layer : compared.layers) {
    for (const TensorRows& rows : layer.rows.tensors) {
      by_layer.push_back({rows.tensor});
      by_layer.back().layer = layer.layer;
      by_layer.back().add(layer.layer, rows);
    }
  }
  const FigureOf<TensorTotal> layer{kLayer,
                                    [](const TensorTotal&total) { return layer_number(total.layer); }},
      tensor{kTensor, [](const TensorTotal&total) { return total.tensor; }};
  return {list_cube<TensorTotal>("compared", "compared", {tensor}, total_figures(), sorted),
          list_cube<TensorTotal>("tensors", "tensor", {layer, tensor}, total_figures(), by_layer),
          differing_cube(compared), apart_cube(compared)};
}

std::vector<Figure> rows_columns() { return figures_of(total_figures()); }

std::string rows_table(const Part& part, const TextStyle& style, const std::vector<std::string>& columns) {
  const Cube* const compared = part.find("compared");
  return compared && compared->rows() > 0 ? "\n" + cube_table(*compared, style, columns) : "";
}

}  // namespace kvbound::sim
