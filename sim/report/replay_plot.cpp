#include "replay_plot.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvbound/sim/figures/plot.hpp>

namespace kvbound::sim {
namespace {

// The runs of a part, by their places on the axis of runs.
class Runs {
 public:
  explicit Runs(const Part& part) : runs_(*part.find("runs")), heads_(*part.find("heads")) {}

  std::string label(int64_t run) const {
    return fmt::format("{}, {}", key("label").texts()[at(run)], key("backend").texts()[at(run)]);
  }
  std::string budget(int64_t run) const { return key("budget").texts()[at(run)]; }
  double entries(int64_t run) const { return key("entries").numbers()[at(run)]; }
  std::optional<int64_t> base(int64_t run) const {
    const double place = runs_.find("base_run")->numbers()[at(run)];
    return std::isnan(place) ? std::nullopt : std::optional(static_cast<int64_t>(place));
  }
  std::optional<double> relative(int64_t run) const {
    const double mean = runs_.find("relative")->numbers()[at(run)];
    return std::isnan(mean) ? std::nullopt : std::optional(mean);
  }
  int64_t size() const { return runs_.rows(); }

  // Runs of the same policy and backend side by side, in the order of their first ones.
  std::vector<int64_t> by_policy() const {
    std::vector<int64_t> sorted;
    for (int64_t first = 0; first < size(); ++first) {
      if (std::ranges::any_of(sorted, [&](int64_t run) { return label(run) == label(first); })) continue;
      for (int64_t run = first; run < size(); ++run) {
        if (label(run) == label(first)) sorted.push_back(run);
      }
    }
    return sorted;
  }

  CellMap change_map(int64_t run, int64_t base) const {
    const Axis &layers = *heads_.axes[1], &heads = *heads_.axes[2];
    const std::vector<double>& means = heads_.find("perturbation")->numbers();
    CellMap cells{fmt::format("Change of L against {} by layer and query head: {}, budget {}",
                              key("label").texts()[at(base)], label(run), budget(run)),
                  {},
                  static_cast<size_t>(heads.size()),
                  {},
                  true};
    const int64_t size = layers.size() * heads.size();
    for (int64_t l = 0; l < layers.size(); ++l) cells.rows.push_back(layers.keys.front().text(l));
    for (int64_t i = 0; i < size; ++i) {
      const double own = means[at(run * size + i)], other = means[at(base * size + i)];
      cells.values.push_back((own - other) / other);
    }
    return cells;
  }

 private:
  static size_t at(int64_t place) { return static_cast<size_t>(place); }
  const Column& key(std::string_view name) const {
    return *std::ranges::find(runs_.axes.front()->keys, name,
                              [](const Column& key) { return key.figure.name; });
  }

  const Cube &runs_, &heads_;
};

}  // namespace

std::string replay_plots(const Part& part, const TextStyle& style) {
  const Runs runs(part);
  const std::vector<int64_t> sorted = runs.by_policy();
  std::vector<Bar> bars;
  for (const int64_t run : sorted) bars.push_back({runs.label(run), runs.budget(run), runs.relative(run)});
  std::string text = bar_chart("Relative L by budget", bars, style);
  for (const int64_t run : sorted) {
    const bool is_largest = std::ranges::none_of(sorted, [&](int64_t other) {
      return runs.label(other) == runs.label(run) && runs.entries(other) > runs.entries(run);
    });
    if (const auto base = runs.base(run); is_largest && base)
      text += cell_map(runs.change_map(run, *base), style);
  }
  return text;
}

}  // namespace kvbound::sim
