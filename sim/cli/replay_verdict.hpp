// The verdict on a replay's results, as the exit code of the commands that show them.
#pragma once

#include <kvbound/sim/replay/replay_cubes.hpp>

namespace kvbound::sim {

/// The most severe outcome of a trace's runs: kMismatch if a bound is violated, a merge that should be
/// lossless is not, or a backend differs from the reference; kInconclusive if nothing was measured or
/// agreement has no evidence; otherwise kPass. Each that is not a pass is explained on standard error, the
/// lack of decode steps only if not `quiet`.
int replay_verdict(const ReplayReport& report, bool quiet);

/// The more severe of two exit codes: mismatch, then inconclusive, then pass.
int worse(int one, int other);

}  // namespace kvbound::sim
