#include "bench_prefill.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/models/checkpoint.hpp>
#include <kvbound/traces/models/decoder.hpp>
#include <kvbound/traces/portable_random.hpp>

#include "bench_layer.hpp"
#include "bench_roofline.hpp"

namespace kvbound::sim {
namespace {

using Weights = std::vector<const traces::Weight*>;

double elements(const traces::Weight& weight) { return static_cast<double>(weight.rows * weight.cols); }

Weights layer_matrices(const traces::Checkpoint& checkpoint) {
  Weights weights;
  for (const traces::LayerWeights& layer : checkpoint.layers()) {
    for (const auto matrix :
         {&traces::LayerWeights::query, &traces::LayerWeights::key, &traces::LayerWeights::value,
          &traces::LayerWeights::output, &traces::LayerWeights::gate, &traces::LayerWeights::up,
          &traces::LayerWeights::down})
      weights.push_back(&(layer.*matrix));
  }
  return weights;
}

double layer_weights(const traces::Checkpoint& checkpoint) {
  double weights = 0;
  for (const traces::Weight* matrix : layer_matrices(checkpoint)) weights += elements(*matrix);
  return weights;
}

// A stretch of a weight's bytes in its file.
struct Stretch {
  const traces::Weight* of;
  int64_t begin, size;
};

// All matrices by which a decode step multiplies, in stretches of at most 256 KiB.
std::vector<Stretch> stretches_of(const traces::Checkpoint& checkpoint) {
  constexpr int64_t kMost = int64_t{1} << 18;
  Weights weights = layer_matrices(checkpoint);
  weights.push_back(&checkpoint.output());
  std::vector<Stretch> stretches;
  for (const traces::Weight* weight : weights) {
    const int64_t size = weight->rows * weight->row_bytes();
    for (int64_t done = 0; done < size; done += kMost) {
      stretches.push_back({weight, weight->begin + done, std::min(kMost, size - done)});
    }
  }
  return stretches;
}

void read_all(const std::vector<Stretch>& stretches) {
  reference::parallel_for(
      std::ssize(stretches), [] { return std::vector<char>(); },
      [&](std::vector<char>& bytes, int64_t i) {
        bytes.resize(stretches[i].size);
        stretches[i].of->file->read(stretches[i].begin, bytes, stretches[i].of->name);
      });
}

// The FLOP of a prompt of n tokens, and of the logits behind it.
double prefill_work(const traces::Checkpoint& checkpoint, int64_t n) {
  const traces::ModelConfig& config = checkpoint.config();
  const double pairs = static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  return 2 * layer_weights(checkpoint) * static_cast<double>(n) + 2 * elements(checkpoint.output()) +
         4 * static_cast<double>(config.layers * config.query_heads * config.head_dim) * pairs;
}

std::vector<int64_t> random_tokens(const BenchOptions& options, int64_t vocabulary) {
  const traces::Stream random = BenchLayer::random(options, 11);
  std::vector<int64_t> tokens(options.prompt);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        std::min(vocabulary - 1, static_cast<int64_t>(random.uniform(i) * static_cast<double>(vocabulary)));
  }
  return tokens;
}

}  // namespace

double weights_of(const traces::Checkpoint& checkpoint) {
  return layer_weights(checkpoint) + elements(checkpoint.output());
}

BenchPiece single_cubes_piece(const BenchOptions& options) {
  struct SquareProduct {
    std::vector<float> a, b, out;
  };
  constexpr int64_t kSide = 2048;
  constexpr int kTimes = 4;  // long enough to see the fluctuations of the machine that a prompt sees
  const Matrix source = random_matrix(kSide, kSide, BenchLayer::random(options, 12));
  const std::vector<float> numbers(source.data(), source.data() + kSide * kSide);
  const auto cubes =
      std::make_shared<std::vector<SquareProduct>>(options.threads, SquareProduct{numbers, numbers, numbers});
  const std::string core = options.fastest_core.empty() ? reference::blas_info().core : options.fastest_core;
  return {fmt::format("{} SGEMM, {} {}-cubes", core, options.threads, kSide),
          2 * std::pow(static_cast<double>(kSide), 3) * kTimes * options.threads, "FLOP", [cubes, core] {
            const reference::ProductsOf fastest(core);
            reference::parallel_for(std::ssize(*cubes), [&](int64_t i) {
              SquareProduct& cube = (*cubes)[i];
              for (int time = 0; time < kTimes; ++time) {
                reference::multiply(SingleMatrixView(cube.a.data(), kSide, kSide),
                                    SingleMatrixView(cube.b.data(), kSide, kSide),
                                    MutableSingleMatrixView(cube.out.data(), kSide, kSide));
              }
            });
          }};
}

BenchResult bench_prefill(const BenchOptions& options) {
  const traces::Checkpoint checkpoint(options.model);
  const std::vector<int64_t> tokens = random_tokens(options, checkpoint.config().vocabulary);
  const BenchPiece prefill{
      fmt::format("prefill, {} tokens", options.prompt), prefill_work(checkpoint, options.prompt), "FLOP",
      [&] { traces::Decoder(checkpoint, options.prompt, Dtype::f16).run(tokens, nullptr); }};
  const BenchPiece cubes = single_cubes_piece(options);
  BenchResult result = measure({prefill, cubes}, options.rounds, [&](std::span<const double> seconds) {
    return prefill.work / seconds[0] / (cubes.work / seconds[1]);
  });
  result.ratio_meaning =
      fmt::format("share of the SGEMM rate by {}", traces::printable(checkpoint.config().name, 60));
  result.goal = at_least(0.7);
  return result;
}

BenchResult bench_model_step(const BenchOptions& options) {
  constexpr int64_t kSteps = 16;
  const traces::Checkpoint checkpoint(options.model);
  const std::vector<Stretch> stretches = stretches_of(checkpoint);
  const double bytes =
      std::accumulate(stretches.begin(), stretches.end(), 0.0,
                      [](double sum, const Stretch& own) { return sum + static_cast<double>(own.size); });
  const std::vector<int64_t> tokens(1, 0);
  const BenchPiece steps{fmt::format("{} steps of one sequence", kSteps), bytes * kSteps, "bytes", [&] {
                           traces::Decoder decoder(checkpoint, kSteps, Dtype::f16);
                           for (int64_t t = 0; t < kSteps; ++t) decoder.run(tokens, nullptr);
                         }};
  const BenchPiece reading{"its weights read from the file alone", bytes * kSteps, "bytes", [&] {
                             for (int64_t t = 0; t < kSteps; ++t) read_all(stretches);
                           }};
  BenchResult result = measure({steps, reading}, options.rounds,
                               [](std::span<const double> seconds) { return seconds[0] / seconds[1]; });
  result.ratio_meaning = fmt::format("times its weights read from the file alone, by {}",
                                     traces::printable(checkpoint.config().name, 60));
  result.goal = at_most(4);
  return result;
}

}  // namespace kvbound::sim
