// The speed at which `record` reads a prompt, and at which it decodes.
#pragma once

#include <kvbound/traces/models/checkpoint.hpp>

#include "bench.hpp"

namespace kvbound::sim {

/// The weights by which a token's numbers are multiplied, those of the logits included.
double weights_of(const traces::Checkpoint& checkpoint);

/// Products of square matrices in single precision, one on every thread: the roofline of what runs a model.
BenchPiece single_cubes_piece(const BenchOptions& options);

/// Runs options.model on options.prompt random tokens, in single precision, against the rate
/// of SGEMM on all threads.
///
/// The work counted is that of the model's matrices, 2 FLOP per weight and token, and of attention to earlier
/// positions, 4 query_heads head_dim n (n + 1) / 2 per layer: neither the logits that causality hides, nor
/// exponentials, norms and the decoding of quantised weights, all of which take time.
///
/// throws  TraceError and IoError from opening and reading the checkpoint
BenchResult bench_prefill(const BenchOptions& options);

/// Steps of options.model behind no prompt, one token at a time, against reading the bytes of all matrices
/// that a step multiplies by from their file: what a step costs besides is decoding and multiplying them.
///
/// throws  as bench_prefill
BenchResult bench_model_step(const BenchOptions& options);

}  // namespace kvbound::sim
