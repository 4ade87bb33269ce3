#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include <fmt/format.h>

#include <kvbound/reference/critical_kv.hpp>
#include <kvbound/reference/exponential.hpp>
#include <kvbound/reference/parallel.hpp>
#include <kvbound/reference/product.hpp>
#include <kvbound/reference/selection.hpp>
#include <kvbound/reference/session.hpp>
#include <kvbound/reference/snap_kv.hpp>
#include <kvbound/traces/portable_random.hpp>

#include "bench.hpp"

namespace kvbound::sim {
namespace {

using reference::parallel_for;
using Numbers = std::vector<double>;

constexpr int64_t kWindow = 32;

// Nearly normal, one in about a thousand 16 times as large: caches have such outliers, and a kernel that loses
// one is seen to.
void fill(std::span<double> numbers, const traces::Stream& random, double size) {
  constexpr int64_t kBlock = 65536;
  const auto count = static_cast<int64_t>(numbers.size());
  parallel_for((count + kBlock - 1) / kBlock, [&](int64_t block) {
    for (int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
      const auto index = static_cast<uint64_t>(i);
      const double spike = random.bits(~index) % 1024 == 0 ? 16 : 1;
      numbers[static_cast<size_t>(i)] = size * spike * random.normal(index);
    }
  });
}

Matrix random_matrix(int64_t rows, int64_t cols, const traces::Stream& random) {
  Matrix matrix(rows, cols);
  fill({matrix.data(), matrix.numbers().size()}, random, 1 / std::sqrt(static_cast<double>(cols)));
  return matrix;
}

Tensor random_tensor(int64_t slices, int64_t rows, int64_t cols, const traces::Stream& random) {
  Tensor tensor(slices, rows, cols);
  fill(tensor.numbers(), random, 1);
  return tensor;
}

// A layer after its prompt.
struct Layer {
  explicit Layer(const BenchOptions& options)
      : shape(options.shape.layer),
        keys(random_tensor(shape.kv_heads, options.shape.tokens, shape.head_dim, random(options, 1))),
        values(random_tensor(shape.kv_heads, options.shape.tokens, shape.head_dim, random(options, 2))),
        queries(random_tensor(shape.query_heads, kWindow, shape.head_dim, random(options, 3))),
        output_projection(
            random_matrix(shape.query_heads * shape.head_dim, shape.model_dim, random(options, 4))) {}

  static traces::Stream random(const BenchOptions& options, uint64_t name) {
    return traces::Stream(options.seed).child(name);
  }
  LayerView view() const {
    return {
        shape, 1 / std::sqrt(static_cast<double>(shape.head_dim)), keys, values, queries, output_projection};
  }

  LayerShape shape;
  Tensor keys, values, queries;
  Matrix output_projection;
};

// The product of two square matrices by OpenBLAS with threads of its own, several times over.
BenchPiece cube_piece(const BenchOptions& options, int threads, int times) {
  struct Cube {
    Matrix a, b, out;
  };
  const int64_t side = options.shape.cube;
  const auto cube =
      std::make_shared<Cube>(Cube{random_matrix(side, side, Layer::random(options, 5)),
                                  random_matrix(side, side, Layer::random(options, 6)), Matrix(side, side)});
  return {fmt::format("DGEMM, {}-cube, {} thread{}", side, threads, threads == 1 ? "" : "s"),
          2 * std::pow(static_cast<double>(side), 3) * times, "FLOP", [cube, threads, times] {
            for (int i = 0; i < times; ++i) {
              reference::multiply_with_blas_threads(cube->a, cube->b, cube->out.view(), threads);
            }
          }};
}

// `rows` rows of `length` exponentials, by as many threads as there are; each row in its thread's cache.
BenchPiece exponential_piece(int64_t rows, int64_t length, const std::string& name,
                             const std::function<double(std::span<double>)>& exponentials) {
  return {name, static_cast<double>(rows * length), "exponentials", [=] {
            parallel_for(
                rows, [&] { return Numbers(static_cast<size_t>(length), 0.0); },
                [&](Numbers& numbers, int64_t) { exponentials(numbers); });
          }};
}

// exp(x - 1) again and again stays between exp(-1) and 1.
double vector_exponentials(std::span<double> numbers) { return reference::exponentiate(numbers, 1); }
double scalar_exponentials(std::span<double> numbers) {
  double sum = 0;
  for (double& number : numbers) sum += number = std::exp(number - 1);
  return sum;
}

BenchResult bench_exponential(const BenchOptions& options) {
  const int64_t rows = options.shape.layer.query_heads * kWindow;
  BenchResult result =
      measure({exponential_piece(rows, options.shape.tokens, "exponential", vector_exponentials),
               exponential_piece(rows, options.shape.tokens, "std::exp, one by one", scalar_exponentials)},
              options.rounds, [](std::span<const double> seconds) { return seconds[1] / seconds[0]; });
  result.ratio_meaning = "times as fast as std::exp";
  return result;
}

BenchResult bench_norms(const BenchOptions& options) {
  const int64_t tokens = options.shape.tokens, head_dim = options.shape.layer.head_dim,
                model_dim = options.shape.layer.model_dim;
  const Tensor values = random_tensor(1, tokens, head_dim, Layer::random(options, 2));
  const Matrix projection = random_matrix(head_dim, model_dim, Layer::random(options, 4));
  const double flops = 2 * static_cast<double>(tokens * head_dim * model_dim);
  const BenchPiece cube = cube_piece(options, options.threads, 2);
  const BenchPiece norms{
      "projected-value-norms", flops, "FLOP", [&] {
        reference::projected_value_norms({1, 1, head_dim, model_dim}, values, projection, Norm::l1);
      }};
  BenchResult result = measure({norms, cube}, options.rounds, [&](std::span<const double> seconds) {
    return flops / seconds[0] / (cube.work / seconds[1]);
  });
  result.ratio_meaning = "share of the DGEMM rate";
  result.goal = BenchGoal{0.8, true};
  return result;
}

// The products of window_attention, one for all queries that share a KV head: there is no larger one. Into
// memory that is there already.
BenchPiece window_products(const BenchOptions& options, const Layer& layer, double work) {
  const int64_t rows = layer.shape.group_size() * kWindow;
  const auto products = std::make_shared<std::vector<Matrix>>(static_cast<size_t>(options.threads),
                                                              Matrix(rows, options.shape.tokens));
  return {"its DGEMMs alone", work, "FLOP", [&layer, products, rows] {
            parallel_for(layer.shape.kv_heads, [&](int64_t g) {
              const MatrixView queries(layer.queries.data() + g * rows * layer.shape.head_dim, rows,
                                       layer.shape.head_dim);
              Matrix& product = products->at(static_cast<size_t>(omp_get_thread_num()));
              reference::multiply_transposed(queries, layer.keys.slice(g), product.view());
            });
          }};
}

BenchResult bench_window(const BenchOptions& options) {
  const Layer layer(options);
  const int64_t rows = layer.shape.query_heads * kWindow;
  const double flops = 2 * static_cast<double>(rows * options.shape.tokens * layer.shape.head_dim);
  BenchResult result = measure(
      {{"window-attention", flops, "FLOP", [&] { reference::window_attention(layer.view(), kWindow); }},
       window_products(options, layer, flops),
       exponential_piece(rows, options.shape.tokens, "its exponentials alone", vector_exponentials)},
      options.rounds, [](std::span<const double> seconds) { return seconds[0] / (seconds[1] + seconds[2]); });
  result.ratio_meaning = "times its DGEMMs and exponentials alone";
  result.goal = BenchGoal{1.25, false};
  return result;
}

BenchResult bench_selection(const BenchOptions& options) {
  const int64_t count = 4 * options.shape.tokens, k = count / 5;
  const traces::Stream random = Layer::random(options, 7);
  Numbers scores(static_cast<size_t>(count));
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = random.exponential(i);
  Numbers copy = scores;
  const auto work = static_cast<double>(count);
  BenchResult result =
      measure({{"selection", work, "scores", [&] { reference::select_top(scores, k); }},
               {"std::nth_element", work, "scores",
                [&] {
                  std::ranges::copy(scores, copy.begin());
                  std::nth_element(copy.begin(), copy.begin() + k, copy.end(), std::greater<>());
                }}},
              options.rounds, [](std::span<const double> seconds) { return seconds[0] / seconds[1]; });
  result.ratio_meaning = "times std::nth_element and a copy";
  result.goal = BenchGoal{3, false};
  return result;
}

BenchPiece compress_piece(const BenchOptions& options, const Layer& layer, int threads) {
  std::string name = fmt::format("compress, {} thread{}", threads, threads == 1 ? "" : "s");
  return {name, 1, "layers", [&layer, threads, all = options.threads, tokens = options.shape.tokens] {
            Policy policy;
            policy.selection = Critical{};
            const std::vector<int64_t> budgets(static_cast<size_t>(layer.shape.kv_heads), tokens / 5);
            omp_set_num_threads(threads);
            reference::make_session()->compress(layer.view(), policy, budgets);
            omp_set_num_threads(all);
          }};
}

BenchResult bench_compress(const BenchOptions& options) {
  const Layer layer(options);
  std::vector<BenchPiece> pieces{compress_piece(options, layer, options.threads)};
  const bool alone = options.threads == 1 || omp_get_num_procs() == 1;
  if (!alone) {
    pieces.push_back(compress_piece(options, layer, 1));
    // Long enough to see the same ups and downs of the machine.
    constexpr int kTimes = 8;
    pieces.push_back(cube_piece(options, options.threads, kTimes));
    pieces.push_back(cube_piece(options, 1, kTimes));
  }
  BenchResult result = measure(pieces, options.rounds, [&](std::span<const double> seconds) {
    return alone ? 0 : seconds[1] / seconds[0] / (seconds[3] / seconds[2]);
  });
  result.ratio_meaning = fmt::format("share of what {} threads speed DGEMM up", options.threads);
  result.goal = BenchGoal{0.9, true};
  if (alone) {
    result.ratios.clear();
    result.no_ratio = options.threads == 1 ? "one thread: no speed-up" : "one processor: no speed-up";
  }
  return result;
}

constexpr BenchOperation kOperations[] = {
    {"exponential", "exp of query_heads x 32 x tokens numbers, against std::exp", bench_exponential},
    {"projected-value-norms", "of one head's tokens, in L1, against DGEMM's rate", bench_norms},
    {"window-attention", "32 queries of each head, against its DGEMMs and exponentials alone", bench_window},
    {"selection", "the largest 20 % of 4 x tokens scores, against std::nth_element", bench_selection},
    {"compress", "a layer by snapkv+critical at 20 %: speed-up by threads, against DGEMM's", bench_compress},
};

}  // namespace

std::span<const BenchOperation> bench_operations() { return kOperations; }

}  // namespace kvbound::sim
