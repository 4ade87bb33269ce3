#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <omp.h>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/portable_random.hpp>

#include "bench.hpp"
#include "bench_host.hpp"
#include "bench_layer.hpp"
#include "bench_lockstep.hpp"
#include "bench_merge.hpp"
#include "bench_prefill.hpp"
#include "bench_replay.hpp"
#include "bench_roofline.hpp"
#include "bench_scores.hpp"

namespace kvbound::sim {
namespace {

using Numbers = std::vector<double>;

constexpr int kSpeedUpThreads = 2;  // the number of threads for which the goal of compress is stated

double scalar_exponentials(std::span<double> numbers) {
  double sum = 0;
  for (double& number : numbers) sum += number = std::exp(number - 1);
  return sum;
}

BenchResult bench_exponential(const BenchOptions& options) {
  const int64_t rows = options.shape.layer.query_heads * BenchLayer::kWindow;
  BenchResult result =
      measure({exponential_piece(rows, options.shape.tokens, "exponential", vector_exponentials),
               exponential_piece(rows, options.shape.tokens, "std::exp, one by one", scalar_exponentials)},
              options.rounds, [](std::span<const double> seconds) { return seconds[1] / seconds[0]; });
  result.ratio_meaning = "times as fast as std::exp";
  return result;
}

// One head's values and its rows of W^O.
struct BenchHead {
  explicit BenchHead(const BenchOptions& options)
      : shape(options.shape.layer),
        values(random_tensor(1, options.shape.tokens, shape.head_dim, BenchLayer::random(options, 2))),
        projection(random_matrix(shape.head_dim, shape.model_dim, BenchLayer::random(options, 4))) {}

  BenchPiece norms(const std::string& name, Norm norm) const {
    return {
        name, static_cast<double>(values.view().rows), "norms", [this, norm] {
          reference::projected_value_norms({1, 1, shape.head_dim, shape.model_dim}, values, projection, norm);
        }};
  }

  LayerShape shape;
  Tensor values;
  Matrix projection;
};

BenchResult bench_norms(const BenchOptions& options) {
  const BenchHead head(options);
  BenchPiece norms = head.norms("projected-value-norms", Norm::l1);
  norms.unit = "FLOP";
  norms.work = 2 * static_cast<double>(options.shape.tokens * head.shape.head_dim * head.shape.model_dim);
  const BenchPiece cube = cube_piece(options, options.threads, 2);
  const auto share = [&](std::span<const double> seconds) {
    return norms.work / seconds[0] / (cube.work / seconds[1]);
  };
  const std::string no_ratio = no_roofline(options.threads);
  BenchResult result = no_ratio.empty() ? measure({norms, cube}, options.rounds, share)
                                        : measure({norms, cube}, options.rounds);
  result.ratio_meaning = "share of the DGEMM rate";
  result.no_ratio = no_ratio;
  result.goal = at_least(0.8);
  return result;
}

BenchResult bench_l2_norms(const BenchOptions& options) {
  const BenchHead head(options);
  BenchResult result =
      measure({head.norms("projected-value-norms-l2", Norm::l2),
               head.norms("in L1, which need the product", Norm::l1)},
              options.rounds, [](std::span<const double> seconds) { return seconds[1] / seconds[0]; });
  const auto d = static_cast<double>(head.shape.head_dim),
             columns = static_cast<double>(head.shape.model_dim),
             tokens = static_cast<double>(options.shape.tokens);
  result.ratio_meaning = fmt::format("times as fast as in L1, with {:.3g} times fewer operations",
                                     tokens * columns / (tokens * d + d * columns));
  return result;
}

// The matrix products of window_attention alone, as fast as this library forms them: each for all
// queries that share a KV head and for so few tokens that the product stays in the cache, where it is
// overwritten by the next one.
BenchPiece window_products(const BenchOptions& options, const BenchLayer& layer, double work) {
  static constexpr int64_t kTokens = 1024;
  const int64_t rows = layer.shape.group_size() * BenchLayer::kWindow;
  const int64_t blocks = (options.shape.tokens + kTokens - 1) / kTokens;
  return {"its DGEMMs alone", work, "FLOP", [&layer, rows, blocks] {
            reference::parallel_for(
                layer.shape.kv_heads * blocks, [&] { return Matrix(rows, kTokens); },
                [&](Matrix& product, int64_t piece) {
                  const int64_t g = piece / blocks, first = piece % blocks * kTokens;
                  const MatrixView keys = layer.keys.slice(g);
                  const int64_t count = std::min(kTokens, keys.rows - first);
                  const MatrixView queries(layer.queries.data() + g * rows * layer.shape.head_dim, rows,
                                           layer.shape.head_dim);
                  reference::multiply_transposed(queries, keys.middle_rows(first, count),
                                                 product.view().middle_cols(0, count));
                });
          }};
}

BenchResult bench_window(const BenchOptions& options) {
  const BenchLayer layer(options);
  const int64_t rows = layer.shape.query_heads * BenchLayer::kWindow;
  const double flops = 2 * static_cast<double>(rows * options.shape.tokens * layer.shape.head_dim);
  BenchResult result = measure(
      {{"window-attention", flops, "FLOP",
        [&] { reference::window_attention(layer.view(), BenchLayer::kWindow); }},
       window_products(options, layer, flops),
       exponential_piece(rows, options.shape.tokens, "its exponentials alone", vector_exponentials)},
      options.rounds, [](std::span<const double> seconds) { return seconds[0] / (seconds[1] + seconds[2]); });
  result.ratio_meaning = "times its DGEMMs and exponentials alone";
  result.goal = at_most(1.25);
  return result;
}

BenchResult bench_selection(const BenchOptions& options) {
  const int64_t count = 4 * options.shape.tokens, k = count / 5;
  const traces::Stream random = BenchLayer::random(options, 7);
  Numbers scores(count);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = random.exponential(i);
  Numbers copy = scores;
  const auto work = static_cast<double>(count);
  BenchResult result =
      measure({{"selection", work, "scores", [&] { reference::select_top(scores, k); }},
               {"std::nth_element and a copy", work, "scores",
                [&] {
                  std::ranges::copy(scores, copy.begin());
                  std::nth_element(copy.begin(), copy.begin() + k, copy.end(), std::greater<>());
                }}},
              options.rounds, [](std::span<const double> seconds) { return seconds[0] / seconds[1]; });
  result.ratio_meaning = "times std::nth_element and a copy";
  result.goal = at_most(3);
  return result;
}

BenchPiece compress_piece(const BenchOptions& options, const BenchLayer& layer, int threads) {
  return {fmt::format("compress, {}, {}", options.policy, thread_count(threads)), 1, "layers",
          [&layer, threads, all = options.threads, budgets = bench_budgets(options),
           policy = parse_policy(options.policy)] {
            omp_set_num_threads(threads);
            reference::make_session()->compress(layer.view(), policy, budgets);
            omp_set_num_threads(all);
          }};
}

// Why no speed-up can be measured; empty if it can.
std::string no_speed_up(const BenchOptions& options) {
  if (options.threads < kSpeedUpThreads) return "one thread: no speed-up";
  if (omp_get_num_procs() < kSpeedUpThreads) return "one processor: no speed-up";
  return no_roofline(kSpeedUpThreads);
}

BenchResult measure_compress(const BenchOptions& options, const BenchLayer& layer, bool speed_up) {
  if (!speed_up) return measure({compress_piece(options, layer, options.threads)}, options.rounds);
  constexpr int kTimes = 8;  // long enough for DGEMM to see the same fluctuations of the machine
  return measure({compress_piece(options, layer, kSpeedUpThreads), compress_piece(options, layer, 1),
                  cube_piece(options, kSpeedUpThreads, kTimes), cube_piece(options, 1, kTimes)},
                 options.rounds, [](std::span<const double> seconds) {
                   return seconds[1] / seconds[0] / (seconds[3] / seconds[2]);
                 });
}

BenchResult bench_compress(const BenchOptions& options) {
  const std::string no_ratio = no_speed_up(options);
  BenchResult result = measure_compress(options, BenchLayer(options), no_ratio.empty());
  result.ratio_meaning = fmt::format("share of what {} threads speed DGEMM up", kSpeedUpThreads);
  result.no_ratio = no_ratio;
  result.goal = at_least(0.9);
  result.policy = canonical(parse_policy(options.policy));
  return result;
}

constexpr BenchOperation kOperations[] = {
    {"exponential", "exp of query_heads x 32 x tokens numbers, against std::exp", bench_exponential},
    {"projected-value-norms", "L1 norms of one head's projected values, against DGEMM's rate", bench_norms},
    {"projected-value-norms-l2", "L2 norms of the same, by the Gram matrix of W^O, against L1 norms",
     bench_l2_norms},
    {"window-attention", "attention of 32 queries per head, against its DGEMMs and exponentials alone",
     bench_window},
    {"window-scores-joint",
     "OBCache's joint score by 32 queries per head, against DGEMM's rate and exponentials",
     bench_joint_scores},
    {"window-scores-exact", "the exact removal error by the same queries, against the same",
     bench_exact_scores},
    {"selection", "the largest 20 % of 4 x tokens scores, against std::nth_element and a copy",
     bench_selection},
    {"nearest-key",
     "for each of a head's 80 % of evicted keys, the most similar of the 20 % kept, against DGEMM's rate",
     bench_nearest_key},
    {"compress", "a layer by a policy (--policy) at 20 %: speed-up by 2 threads, against DGEMM's",
     bench_compress, true},
    {"step-attention", "a decode step of h2o at 20 %, against attention over the same cache",
     bench_step_attention},
    {"step-value", "the same with h2o+obcache-value", bench_step_value},
    {"step-key", "the same with h2o+obcache-key", bench_step_key},
    {"step-joint", "the same with h2o+obcache-joint", bench_step_joint},
    {"step-exact", "the same with h2o+exact", bench_step_exact},
    {"step-keepkv", "the same with h2o+keepkv, where every evicted entry merges", bench_step_keepkv},
    {"upload", "keys and values of a layer in BF16, as they go to a device, against a copy of as many bytes",
     bench_upload},
    {"step-host", "what the processor does for a decode step on a device, against 6 us", bench_step_host},
    {"replay", "ten policies over a layer, on one thread: the serial share of what 64 threads would take",
     bench_replay},
    {"prefill", "a model (--model) reads --prompt tokens, as record runs it, against SGEMM's rate",
     bench_prefill, false, true},
    {"model-step", "a model (--model) decodes, one token at a time, against reading its weights",
     bench_model_step, false, true},
    {"lockstep", "a model (--model) decodes 31 sequences side by side, against one sequence", bench_lockstep,
     false, true},
};

}  // namespace

std::span<const BenchOperation> reference_bench_operations() { return kOperations; }

}  // namespace kvbound::sim
