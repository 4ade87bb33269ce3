// What `bench --model GPU` prints.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/bench/bench.hpp>
#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

/// The shape, the GPU, and that nothing was measured; then the tables of operations and of their kernels.
std::string prediction_text(const BenchOptions& options, const std::vector<BenchResult>& results,
                            const Part& part, const TextStyle& style,
                            const std::vector<std::string>& columns);

}  // namespace kvbound::sim
