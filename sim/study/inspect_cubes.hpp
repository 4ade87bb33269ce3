// What a trace holds, as cubes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/measure/verify.hpp>

#include "head_profile.hpp"

namespace kvbound::sim {

struct VerifiedLayer {
  int64_t layer = 0;  ///< the model's number
  OutputAgreement agreement;
};

struct Inspection {
  traces::TraceInfo trace;
  std::string sha256;
  std::vector<VerifiedLayer> verified;  ///< those with a recorded attention output, if they were verified
  std::optional<HeadProfiles> heads;    ///< if they were measured
};

/// The document's part.
///
///     verified [verified]                recorded attention outputs
///     layers   [layer], all []           means over heads, and their extremes
///     heads    [layer, head]
///     kv_heads [layer, kv_head]
///     ties     [layer, kv_head, stored]  of SnapKV's scores, by width of the pool and type
Part inspect_part(const Inspection& inspection);

/// The figures of the table of heads, for --columns.
std::vector<Figure> inspect_columns();

}  // namespace kvbound::sim
