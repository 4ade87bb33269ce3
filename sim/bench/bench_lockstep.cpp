#include "bench_lockstep.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <kvbound/sim/evaluate/lockstep.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/models/checkpoint.hpp>

#include "bench_prefill.hpp"

namespace kvbound::sim {
namespace {

constexpr int64_t kSequences = 31, kTogetherSteps = 64, kLogitSteps = 16, kFirst = 2048;

// All layers and the logits, with attention outputs of 0.
void decode(const traces::Checkpoint& checkpoint, int64_t steps, int64_t sequences) {
  const std::vector<int64_t> tokens(steps, 0);
  Lockstep lockstep(checkpoint, tokens, kFirst, sequences, Dtype::f32);
  for (int64_t l = 0; l < checkpoint.config().layers; ++l) {
    lockstep.project(l);
    lockstep.finish(l);
  }
  for (int64_t t = 0; t < steps; t += kLogitSteps) lockstep.logits(t, std::min(kLogitSteps, steps - t));
}

}  // namespace

BenchResult bench_lockstep(const BenchOptions& options) {
  const traces::Checkpoint checkpoint(options.model);
  const double work = 2 * weights_of(checkpoint);
  const BenchPiece together{fmt::format("{} steps of {} sequences", kTogetherSteps, kSequences),
                            work * kTogetherSteps * kSequences, "FLOP",
                            [&] { decode(checkpoint, kTogetherSteps, kSequences); }};
  const BenchPiece alone{fmt::format("{} steps of one sequence, one by one", kTogetherSteps),
                         work * kTogetherSteps, "FLOP", [&] {
                           for (int64_t t = 0; t < kTogetherSteps; ++t) decode(checkpoint, 1, 1);
                         }};
  const BenchPiece cubes = single_cubes_piece(options);
  BenchResult result = measure({together, alone, cubes}, options.rounds,
                               [](std::span<const double> seconds) { return seconds[0] / seconds[1]; });
  result.ratio_meaning =
      fmt::format("times a step of one sequence, by {}", traces::printable(checkpoint.config().name, 60));
  result.goal = at_most(1);
  return result;
}

}  // namespace kvbound::sim
