// The cost of decoding many sequences in lockstep, as `evaluate` does.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// Runs options.model on 31 sequences (10 policies at 3 budgets, and the full cache) of 64 decode steps, and
/// on one sequence step by step, both without attention: everything in which sequences share weights. The
/// ratio is the time of a step of all sequences, as a share of a step of one.
///
/// The work counted is that of the model's matrices, 2 FLOP per weight, sequence and step.
///
/// throws  TraceError and IoError from opening and reading the checkpoint
BenchResult bench_lockstep(const BenchOptions& options);

}  // namespace kvbound::sim
