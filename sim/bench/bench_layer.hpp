// The data that bench works on: a layer of the requested shape after its prompt, filled with random numbers.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/portable_random.hpp>

#include "bench.hpp"

namespace kvbound::sim {

/// Nearly normal numbers, about one in a thousand of which is 16 times as large: caches have such
/// outliers, and a kernel that mishandles one is noticed. A matrix's numbers have variance
/// 1 / cols, before the outliers.
Matrix random_matrix(int64_t rows, int64_t cols, const traces::Stream& random);
Tensor random_tensor(int64_t slices, int64_t rows, int64_t cols, const traces::Stream& random);

/// A layer after its prompt.
struct BenchLayer {
  static constexpr int64_t kWindow = 32;

  explicit BenchLayer(const BenchOptions& options);

  static traces::Stream random(const BenchOptions& options, uint64_t name) {
    return traces::Stream(options.seed).child(name);
  }
  LayerView view() const;

  LayerShape shape;
  Tensor keys, values, queries;
  Matrix output_projection;
};

/// The budgets of snapkv+critical at 20 %, one per KV head.
std::vector<int64_t> bench_budgets(const BenchOptions& options);

}  // namespace kvbound::sim
