// Oracle recall as cubes.
#pragma once

#include <string>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>

#include "recall.hpp"

namespace kvbound::sim {

struct RecallReport {
  RecallResult result;
  std::string sha256;  ///< of the trace; empty if no output needs it
};

/// The document's part.
///
///     scores [scored]               every score with every window: means over layers and query heads
///     heads  [layer, head, scored]
Part recall_part(const RecallReport& report);

/// The figures of the table, for --columns.
std::vector<Figure> recall_columns();

}  // namespace kvbound::sim
