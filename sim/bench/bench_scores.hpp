// How fast entries are scored: a prompt's by its window, and a cache's in decoding.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// The joint and the exact score of a prompt by 32 queries of each head, against their products at DGEMM's rate and their
/// exponentials. Their products: logits, outputs, and those of outputs and values.
BenchResult bench_joint_scores(const BenchOptions& options);
BenchResult bench_exact_scores(const BenchOptions& options);

/// Decode steps of h2o at 20 % with the score, against attention over the same cache.
BenchResult bench_step_attention(const BenchOptions& options);
BenchResult bench_step_value(const BenchOptions& options);
BenchResult bench_step_key(const BenchOptions& options);
BenchResult bench_step_joint(const BenchOptions& options);
BenchResult bench_step_exact(const BenchOptions& options);
/// The same with attention and KeepKV, every evicted entry merges.
BenchResult bench_step_keepkv(const BenchOptions& options);

}  // namespace kvbound::sim
