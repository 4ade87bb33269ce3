#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <kvbound/cuda/eviction/allocation.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/greedy.hpp>
#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/eviction/theta_sweep.hpp>
#include <kvbound/cuda/session/compaction.hpp>

#include "device_inputs.hpp"
#include "device_operations.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

using cuda::Buffer;
using cuda::DeviceMatrix;
using cuda::IndexLists;
using cuda::StoredTensor;

// The candidates and counts of a selection at 20 %, whose last positions are always kept.
struct Candidates {
  explicit Candidates(const BenchOptions& options)
      : rows(options.shape.layer.kv_heads),
        cols(options.shape.tokens - BenchLayer::kWindow),
        k(bench_budgets(options).front() - BenchLayer::kWindow),
        scores(random_scores(rows * cols, BenchLayer::random(options, 11))),
        stage_two_scores(random_scores(rows * cols, BenchLayer::random(options, 12))),
        counts(uploaded(rows, k)),
        stage_one_counts(uploaded(rows, k / 2)),
        status(1) {
    status.clear(kStream);
  }

  cuda::SelectionResult into(IndexLists& lists) { return {lists.data(), lists.stride(), status.data()}; }

  int64_t rows, cols, k;
  std::vector<float> scores, stage_two_scores;
  Buffer<int64_t> counts, stage_one_counts;
  Buffer<int> status;
};

struct Selected {
  Buffer<float> scores;
  IndexLists selected;
};

// select_top or rank_top.
BenchResult bench_largest(const BenchOptions& options, const std::string& name,
                          const decltype(cuda::select_top)& select) {
  Candidates from(options);
  const DeviceWork work = select_top_work(from.rows, from.cols, from.k);
  Rotation<Selected> sets(work.bytes, [&] {
    return Selected{uploaded(from.scores), IndexLists(from.rows, from.k)};
  });
  Buffer<std::byte> workspace(cuda::select_top_workspace(from.rows, from.cols));
  return measure_on_device(options, name, {work, Roofline::time, kLatencyGoal}, [&](cuda::Stream stream) {
    Selected& set = sets.next();
    select(set.scores.data(), from.rows, from.cols, from.cols, from.counts.data(), from.into(set.selected),
           all_of(workspace), stream);
  });
}

BenchResult bench_select_top(const BenchOptions& options) {
  return bench_largest(options, "select-top", cuda::select_top);
}

BenchResult bench_rank_top(const BenchOptions& options) {
  return bench_largest(options, "rank-top", cuda::rank_top);
}

BenchResult bench_select_critical(const BenchOptions& options) {
  struct Set {
    Buffer<float> scores, stage_two_scores;
    IndexLists selected, stage_one;
  };
  Candidates from(options);
  const DeviceWork work = select_critical_work(from.rows, from.cols, from.k, from.k / 2);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{uploaded(from.scores), uploaded(from.stage_two_scores), IndexLists(from.rows, from.k),
               IndexLists(from.rows, from.k)};
  });
  Buffer<std::byte> workspace(cuda::select_critical_workspace(from.rows, from.cols));
  return measure_on_device(
      options, "select-critical", {work, Roofline::time, kLatencyGoal}, [&](cuda::Stream stream) {
        Set& set = sets.next();
        cuda::select_critical(set.scores.data(), set.stage_two_scores.data(), from.rows, from.cols, from.cols,
                              from.counts.data(), from.stage_one_counts.data(), from.into(set.selected),
                              from.into(set.stage_one), all_of(workspace), stream);
      });
}

// The first stage with which a head holds half of its attention; the candidates are ranked.
BenchResult bench_adaptive_stage_one(const BenchOptions& options) {
  struct Set {
    StoredTensor<Stored> queries, keys;
    double bytes() const { return traffic(queries, keys); }
  };
  Candidates from(options);
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = options.shape.tokens;
  const BenchLayer layer(options);
  Rotation<Set> sets([&] { return Set{{layer.queries, kStream}, {layer.keys, kStream}}; });
  const auto window = [&](const Set& set) {
    return cuda::WindowView<Stored>{set.queries.view(), set.keys.view(), scale(shape)};
  };
  Buffer<float> scores = uploaded(from.scores);
  IndexLists ranked(from.rows, from.k);
  DeviceMatrix log_sum_exp(shape.query_heads, BenchLayer::kWindow);
  Buffer<std::byte> preparation(
      std::max(cuda::window_log_sum_exp_workspace(shape.query_heads, BenchLayer::kWindow, tokens),
               cuda::select_top_workspace(from.rows, from.cols)));
  cuda::rank_top(scores.data(), from.rows, from.cols, from.cols, from.counts.data(), from.into(ranked),
                 all_of(preparation), kStream);
  cuda::window_log_sum_exp<Stored>(window(sets.next()), log_sum_exp.data(), all_of(preparation), kStream);
  Buffer<int64_t> counts(from.rows);
  Buffer<std::byte> workspace(
      cuda::adaptive_stage_one_workspace(shape.query_heads, BenchLayer::kWindow, tokens));
  const int64_t entries = shape.query_heads * BenchLayer::kWindow * (from.k + BenchLayer::kWindow);
  const DeviceWork work{traffic(ranked, log_sum_exp, counts, sets.next().queries) +
                            2 * as_real(shape.kv_heads * (from.k + BenchLayer::kWindow) * shape.head_dim),
                        2 * as_real(entries * shape.head_dim)};
  return measure_on_device(
      options, "adaptive-stage-one", {work, Roofline::time, kLatencyGoal}, [&](cuda::Stream stream) {
        cuda::adaptive_stage_one<Stored>(window(sets.next()), log_sum_exp.data(), {0, BenchLayer::kWindow},
                                         ranked.data(), ranked.stride(), from.counts.data(), counts.data(),
                                         all_of(workspace), stream);
      });
}

BenchResult bench_adakv_budgets(const BenchOptions& options) {
  struct Set {
    Buffer<float> scores;
    Buffer<int64_t> budgets;
    double bytes() const { return traffic(scores, budgets); }
  };
  Candidates from(options);
  Rotation<Set> sets([&] { return Set{uploaded(from.scores), Buffer<int64_t>(from.rows)}; });
  return measure_on_device(options, "adakv-budgets", {{sets.bytes_of_one(), 0}, Roofline::time, kLatencyGoal},
                           [&](cuda::Stream stream) {
                             Set& set = sets.next();
                             cuda::adakv_budgets({}, set.scores.data(), from.rows, from.cols, from.cols,
                                                 from.counts.data(), set.budgets.data(), from.status.data(),
                                                 stream);
                           });
}

// One of the sweep's 29 selections: scores for one lambda, the largest of them, and
// whether their bound is smaller.
BenchResult bench_theta_sweep_step(const BenchOptions& options) {
  struct Set {
    DeviceMatrix weights, norms, scores;
    IndexLists tried;
    double bytes() const { return traffic(weights, norms, tried); }
  };
  Candidates from(options);
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = options.shape.tokens;
  const std::vector<float> numbers =
      random_scores(shape.query_heads * tokens, BenchLayer::random(options, 18));
  Rotation<Set> sets([&] {
    return Set{uploaded(shape.query_heads, tokens, numbers),
               uploaded(shape.query_heads, tokens, numbers),
               {from.rows, from.cols},
               IndexLists(from.rows, from.k)};
  });
  const auto input = [&](const Set& set) {
    return cuda::ThetaSweepInput{
        set.weights.data(), set.norms.data(), shape.query_heads, shape.kv_heads, tokens, 0, from.cols};
  };
  DeviceMatrix means(1, shape.query_heads);
  cuda::mean_norms(input(sets.next()), means.data(), kStream);
  IndexLists best(from.rows, from.k);
  Buffer<float> bounds = uploaded(from.rows, std::numeric_limits<float>::infinity());
  Buffer<std::byte> top(cuda::select_top_workspace(from.rows, from.cols)),
      better(cuda::keep_better_workspace(from.rows, tokens));
  return measure_on_device(
      options, "theta-sweep-step", {{sets.bytes_of_one(), 0}, Roofline::time, 2 * kLatencyGoal},
      [&](cuda::Stream stream) {
        Set& set = sets.next();
        cuda::sweep_scores(input(set), means.data(), 1, set.scores.data(), stream);
        cuda::select_top(set.scores.data(), from.rows, from.cols, from.cols, from.counts.data(),
                         from.into(set.tried), all_of(top), stream);
        cuda::keep_better(input(set), set.tried.data(), from.counts.data(),
                          {bounds.data(), best.data(), best.stride()}, all_of(better), stream);
      });
}

// Greedy removal, of a short prompt: each removal depends on all before it, in double precision.
BenchResult bench_greedy(const BenchOptions& options) {
  constexpr int64_t kMostTokens = kNative ? 1024 : 96;
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = std::min(options.shape.tokens, kMostTokens), k = tokens / 5;
  const BenchLayer layer(options);
  const StoredTensor<Stored> queries(layer.queries, kStream),
      keys(layer.keys.view().middle_rows(0, tokens), kStream),
      values(layer.values.view().middle_rows(0, tokens), kStream);
  IndexLists selected(shape.kv_heads, k);
  const Buffer<int64_t> counts = uploaded(shape.kv_heads, k);
  Buffer<int> status(1);
  status.clear(kStream);
  Buffer<std::byte> workspace(cuda::select_greedy_workspace(shape.query_heads, shape.kv_heads, shape.head_dim,
                                                            BenchLayer::kWindow, tokens));
  return measure_on_device(
      options, "greedy",
      {{traffic(queries, keys, values, selected), 0}, Roofline::copy_bandwidth, std::nullopt},
      [&](cuda::Stream stream) {
        cuda::select_greedy<Stored>(
            {queries.view(), keys.view(), scale(shape)}, values.view(), tokens - BenchLayer::kWindow,
            counts.data(), {selected.data(), selected.stride(), status.data()}, all_of(workspace), stream);
      });
}

BenchResult bench_compact(const BenchOptions& options) {
  struct Set {
    StoredTensor<Stored> keys, values, kept_keys, kept_values;
  };
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const int64_t budget = bench_budgets(options).front();
  const DeviceWork work = compact_work(shape, budget);
  Positions kept = random_kept(options);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.keys, kStream},
               {layer.values, kStream},
               {shape.kv_heads, budget, shape.head_dim},
               {shape.kv_heads, budget, shape.head_dim}};
  });
  return measure_on_device(
      options, "compact", {work, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        Set& set = sets.next();
        const cuda::PositionLists lists = kept.view();
        cuda::compact<Stored>(std::as_const(set.keys).view(), std::as_const(set.values).view(),
                              lists.positions, lists.stride, lists.count, set.kept_keys.view(),
                              set.kept_values.view(), stream);
      });
}

// A number of every query head and kept entry.
BenchResult bench_compact_numbers(const BenchOptions& options) {
  struct Set {
    DeviceMatrix numbers, kept;
    double bytes() const { return 2 * bytes_of(kept); }
  };
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = options.shape.tokens, budget = bench_budgets(options).front();
  const std::vector<float> numbers =
      random_numbers(shape.query_heads * tokens, BenchLayer::random(options, 18));
  Positions kept = random_kept(options);
  Rotation<Set> sets([&] {
    return Set{uploaded(shape.query_heads, tokens, numbers), {shape.query_heads, budget}};
  });
  const double bytes = sets.bytes_of_one() + traffic(kept.lists, kept.counts);
  return measure_on_device(options, "compact-numbers", {{bytes, 0}, Roofline::time, kLatencyGoal},
                           [&](cuda::Stream stream) {
                             Set& set = sets.next();
                             const cuda::PositionLists lists = kept.view();
                             cuda::compact_numbers({set.numbers.data(), shape.query_heads, tokens},
                                                   shape.kv_heads, lists.positions, lists.stride, lists.count,
                                                   {set.kept.data(), shape.query_heads, budget}, stream);
                           });
}

constexpr BenchOperation kSelectionOperations[] = {
    {"select-top", "K4: the best 20 % of every KV head", bench_select_top},
    {"rank-top", "K4: the same, best first", bench_rank_top},
    {"select-critical", "K4: the same in two stages", bench_select_critical},
    {"adaptive-stage-one", "how many entries hold half of every query's attention", bench_adaptive_stage_one},
    {"adakv-budgets", "the heads' budgets from all their scores", bench_adakv_budgets},
    {"theta-sweep-step", "one of theta-sweep's selections, and its bound", bench_theta_sweep_step},
    {"greedy", "the greedy selection from up to 1,024 tokens, in double precision", bench_greedy},
    {"compact", "K5: keys and values of the 20 % kept, made contiguous", bench_compact},
    {"compact-numbers", "K5: their scores, of every query head", bench_compact_numbers},
};

}  // namespace

std::span<const BenchOperation> selection_operations() { return kSelectionOperations; }

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
