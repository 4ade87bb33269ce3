#include "prediction_report.hpp"

#include <fmt/format.h>

#include <kvbound/sim/bench/prediction_cubes.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/plot.hpp>

namespace kvbound::sim {

std::string prediction_text(const BenchOptions& options, const std::vector<BenchResult>& results,
                            const Part& part, const TextStyle& style,
                            const std::vector<std::string>& columns) {
  const Cube& operations = *part.find("operations");
  const std::string text = fmt::format(
      "{}:{}, BF16, seed {}; a model of {}\n"
      "Nothing here was measured: the emulation counted what the kernels do, and a roofline model (sim/roofline)\n"
      "predicts from that how long a GPU takes. Of launches that were sampled, numbers are extrapolated.\n\n{}\n{}",
      options.shape.name, options.shape.tokens, options.seed, options.gpu->name(),
      cube_table(operations, style, columns), cube_table(kernels_cube(results), style));
  if (!style.plot) return text;
  return text +
         bar_chart("share of the floor's rate", bars_of(operations, "", "operation", "floor_share"), style);
}

}  // namespace kvbound::sim
