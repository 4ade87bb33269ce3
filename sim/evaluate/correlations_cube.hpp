// Correlations of an evaluation as a cube.
#pragma once

#include <kvbound/sim/figures/cube.hpp>

#include "correlations.hpp"

namespace kvbound::sim {

/// [kind, outcome, indicator, budget], for every kind on that axis.
Cube correlations_cube(const EvaluateResult& result, const Bootstrap& bootstrap, const SharedAxis& kinds);

}  // namespace kvbound::sim
