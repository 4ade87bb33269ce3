#include "replay_plot.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include <kvbound/sim/replay/summary.hpp>

#include "plot.hpp"

namespace kvbound::sim {
namespace {

std::string label_of(const RunResult& run) {
  return fmt::format("{}, {}", run.run.policy.label, run.run.backend);
}

// Runs of the same policy and backend side by side, in the order of their first ones.
std::vector<const RunResult*> by_policy(const std::vector<RunResult>& runs) {
  std::vector<const RunResult*> sorted;
  for (const RunResult& first : runs) {
    if (std::ranges::any_of(sorted, [&](const RunResult* run) { return label_of(*run) == label_of(first); }))
      continue;
    for (const RunResult& run : runs) {
      if (label_of(run) == label_of(first)) sorted.push_back(&run);
    }
  }
  return sorted;
}

double mean_of_head(const LayerMetrics& layer, int64_t head) {
  Mean mean;
  for (int64_t step = 0; step < layer.perturbation.rows(); ++step) mean.add(layer.perturbation(step, head));
  return mean.value().value_or(std::numeric_limits<double>::quiet_NaN());
}

CellMap change_map(const RunResult& run, const RunResult& base, const ReplayResult& result) {
  CellMap cells{fmt::format("Change of L against {} by layer and query head: {}, budget {}",
                            base.run.policy.label, label_of(run), to_string(run.run.budget)),
                {},
                static_cast<size_t>(result.trace.shape.query_heads),
                {},
                true};
  for (size_t l = 0; l < run.layers.size(); ++l) {
    cells.rows.push_back(std::to_string(result.scope.layers[l]));
    for (int64_t head = 0; head < result.trace.shape.query_heads; ++head) {
      const double other = mean_of_head(base.layers[l], head);
      cells.values.push_back((mean_of_head(run.layers[l], head) - other) / other);
    }
  }
  return cells;
}

}  // namespace

std::string replay_plots(const Report& report, const std::optional<Policy>& base, const TextStyle& style) {
  const ReplayResult& result = report.result;
  const std::vector<const RunResult*> runs = by_policy(result.runs);
  std::vector<Bar> bars;
  for (const RunResult* run : runs)
    bars.push_back(
        {label_of(*run), to_string(run->run.budget), summarise(*run, result.scope).relative.value()});
  std::string text = bar_chart("Relative L by budget", bars, style);
  for (size_t r = 0; r < runs.size(); ++r) {
    const bool is_largest = std::ranges::none_of(runs, [&](const RunResult* other) {
      return label_of(*other) == label_of(*runs[r]) && other->entries > runs[r]->entries;
    });
    const RunResult* other = base_of(*runs[r], result, base);
    if (is_largest && other && other != runs[r])
      text += cell_map(change_map(*runs[r], *other, result), style);
  }
  return text;
}

}  // namespace kvbound::sim
