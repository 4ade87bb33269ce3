#include "device_inputs.hpp"

#include <cmath>
#include <cstddef>

#include <kvbound/reference/eviction/selection.hpp>

namespace kvbound::sim::KVBOUND_CUDA_BUILD {

std::vector<float> random_scores(int64_t count, const traces::Stream& random) {
  std::vector<float> scores(count);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(std::exp(8 * random.normal(i)));
  return scores;
}

std::vector<float> random_numbers(int64_t count, const traces::Stream& random) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(random.normal(i));
  return numbers;
}

Positions random_kept(const BenchOptions& options) {
  const int64_t heads = options.shape.layer.kv_heads, budget = bench_budgets(options).front();
  Positions kept(heads, budget);
  for (int64_t g = 0; g < heads; ++g) {
    const traces::Stream random = BenchLayer::random(options, 13).child(static_cast<uint64_t>(g));
    std::vector<double> scores(options.shape.tokens);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = random.uniform(i);
    kept.lists.upload(g, 0, reference::select_top(scores, budget), kStream);
  }
  return kept;
}

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
