// Prediction of scores as cubes.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>

#include "predict.hpp"

namespace kvbound::sim {

struct PredictReport {
  PredictResult result;
  std::string sha256;  ///< of the trace; empty if no output needs it
};

/// The document's part.
///
///     predictors      [predictor]               over layers, query heads and steps
///     reentering      []                        means over layers and query heads
///     variances       []                        likewise
///     shares          [share]                   over layers, query heads and steps
///     layers          [layer]
///     heads           [layer, head]
///     head_predictors [layer, head, predictor]  over steps
///     head_shares     [layer, head, share]      likewise
Part predict_part(const PredictReport& report);

/// The figures of the table of predictors, for --columns.
std::vector<Figure> predict_columns();

}  // namespace kvbound::sim
