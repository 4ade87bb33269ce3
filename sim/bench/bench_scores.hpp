// The speed of scoring: a prompt's entries by its window, and a cache's entries while decoding.
#pragma once

#include "bench.hpp"

namespace kvbound::sim {

/// The joint and the exact score of a prompt's entries by 32 queries per head, against their three products
/// (logits, outputs, and products of outputs with values) at DGEMM's rate and their exponentials.
BenchResult bench_joint_scores(const BenchOptions& options);
BenchResult bench_exact_scores(const BenchOptions& options);

/// Decode steps of h2o at 20 % with each score, against attention over the same cache.
BenchResult bench_step_attention(const BenchOptions& options);
BenchResult bench_step_value(const BenchOptions& options);
BenchResult bench_step_key(const BenchOptions& options);
BenchResult bench_step_joint(const BenchOptions& options);
BenchResult bench_step_exact(const BenchOptions& options);
/// The same with the attention score and KeepKV, where every evicted entry merges.
BenchResult bench_step_keepkv(const BenchOptions& options);

}  // namespace kvbound::sim
