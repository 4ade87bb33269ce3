#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/group_reduction.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/cuda/merging/score_ema.hpp>
#include <kvbound/cuda/session/layer_cache.hpp>

#include "device_inputs.hpp"
#include "device_operations.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

using cuda::Buffer;
using cuda::DeviceMatrix;
using cuda::NormsKernel;
using cuda::StoredTensor;

constexpr int64_t kWindow = BenchLayer::kWindow;

// capacity  of the cache, at least `entries`
BenchResult bench_attention(const BenchOptions& options, const std::string& name, int64_t entries,
                            int64_t capacity) {
  struct Set {
    StoredTensor<Stored> keys, values;
    DeviceMatrix output, log_sum_exp, logits;
  };
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const StoredTensor<Stored> queries(
      random_tensor(1, shape.query_heads, shape.head_dim, BenchLayer::random(options, 10)), kStream);
  const Buffer<int64_t> counts = uploaded(shape.kv_heads, entries);
  const DeviceWork work = attention_work(shape, entries);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.keys.view().middle_rows(0, capacity), kStream},
               {layer.values.view().middle_rows(0, capacity), kStream},
               {shape.query_heads, shape.head_dim},
               {1, shape.query_heads},
               {shape.query_heads, capacity}};
  });
  Buffer<std::byte> workspace(
      cuda::attention_workspace(shape.query_heads, shape.kv_heads, shape.head_dim, capacity));
  return measure_on_device(
      options, name, {work, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        Set& set = sets.next();
        cuda::attention<Stored>(
            queries.view(),
            {std::as_const(set.keys).view(), std::as_const(set.values).view(), counts.data(), nullptr},
            scale(shape), {set.output.data(), set.log_sum_exp.data(), set.logits.data()}, all_of(workspace),
            stream);
      });
}

BenchResult bench_full_attention(const BenchOptions& options) {
  return bench_attention(options, "attention", options.shape.tokens, options.shape.tokens);
}

BenchResult bench_compressed_attention(const BenchOptions& options) {
  const int64_t budget = bench_budgets(options).front();
  const int64_t capacity =
      std::min(cuda::LayerCache<Stored>::capacity_for(budget, true), options.shape.tokens);
  return bench_attention(options, "attention-compressed", budget, capacity);
}

// Operations of the observation window over the whole prompt.
struct Window {
  explicit Window(const BenchOptions& options)
      : shape(options.shape.layer),
        tokens(options.shape.tokens),
        sets(window_attention_work(shape, kWindow, tokens).bytes,
             [this, layer = BenchLayer(options)] {
               return Set{{layer.queries, kStream},
                          {layer.keys, kStream},
                          {shape.query_heads, kWindow},
                          {shape.query_heads, tokens}};
             }),
        workspace(cuda::window_log_sum_exp_workspace(shape.query_heads, kWindow, tokens)) {}

  struct Set {
    StoredTensor<Stored> queries, keys;
    DeviceMatrix log_sum_exp, numbers;  // numbers: of every query head and token
  };

  cuda::WindowView<Stored> view(const Set& set) const {
    return {set.queries.view(), set.keys.view(), scale(shape)};
  }
  void log_sum_exp(Set& set, cuda::Stream stream) {
    cuda::window_log_sum_exp<Stored>(view(set), set.log_sum_exp.data(), all_of(workspace), stream);
  }
  // Computes the log-sum-exps that other operations need; once, because all sets hold the same numbers.
  void prepare() {
    Set& set = sets.next();
    log_sum_exp(set, kStream);
    log_sum_exps = std::exchange(set.log_sum_exp, DeviceMatrix(shape.query_heads, kWindow));
  }

  LayerShape shape;
  int64_t tokens;
  Rotation<Set> sets;
  Buffer<std::byte> workspace;
  DeviceMatrix log_sum_exps;
};

BenchResult bench_window_attention(const BenchOptions& options) {
  Window window(options);
  window.prepare();
  const DeviceWork work = window_attention_work(window.shape, kWindow, window.tokens);
  return measure_on_device(
      options, "window-attention", {work, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        Window::Set& set = window.sets.next();
        cuda::window_attention<Stored>(window.view(set), window.log_sum_exps.data(), WindowReduction::mean,
                                       set.numbers.data(), stream);
      });
}

BenchResult bench_window_log_sum_exp(const BenchOptions& options) {
  Window window(options);
  const DeviceWork work = window_log_sum_exp_work(window.shape, kWindow, window.tokens);
  return measure_on_device(options, "window-log-sum-exp", {work, Roofline::copy_bandwidth, kCopyGoal},
                           [&](cuda::Stream stream) { window.log_sum_exp(window.sets.next(), stream); });
}

// KeepKV's moving averages over the window's queries.
BenchResult bench_prompt_averages(const BenchOptions& options) {
  Window window(options);
  window.prepare();
  const LayerShape& shape = window.shape;
  DeviceMatrix mantissas(shape.query_heads, window.tokens), weights(shape.kv_heads, window.tokens);
  Buffer<std::byte> workspace(
      cuda::prompt_averages_workspace<Stored>(shape.query_heads, shape.kv_heads, kWindow, window.tokens));
  DeviceWork work = window_attention_work(shape, kWindow, window.tokens);
  work.bytes += traffic(mantissas, weights);
  return measure_on_device(
      options, "prompt-averages", {work, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        Window::Set& set = window.sets.next();
        cuda::prompt_averages<Stored>({}, window.view(set), window.log_sum_exps.data(),
                                      {set.numbers.data(), mantissas.data(), weights.data(), window.tokens},
                                      all_of(workspace), stream);
      });
}

// OBCache's joint score over the whole prompt, in the head's space; the queries' outputs are random.
BenchResult bench_change_scores(const BenchOptions& options) {
  Window window(options);
  window.prepare();
  const LayerShape& shape = window.shape;
  const int64_t queries = shape.query_heads * kWindow;
  const BenchLayer layer(options);
  const DeviceWork work = window_change_scores_work(shape, kWindow, window.tokens);
  Rotation<StoredTensor<Stored>> all_values(work.bytes,
                                            [&] { return StoredTensor<Stored>(layer.values, kStream); });
  Buffer<float> outputs = uploaded(random_numbers(queries * shape.head_dim, BenchLayer::random(options, 15)));
  Buffer<float> norms = uploaded(queries, static_cast<float>(shape.head_dim));
  Buffer<int64_t> dominant = uploaded(queries, int64_t{-1});
  DeviceMatrix lengths(shape.query_heads, window.tokens);
  cuda::squared_norms<Stored>(std::as_const(all_values.next()).view(), nullptr, shape.query_heads,
                              lengths.data(), kStream);
  return measure_on_device(
      options, "window-change-scores", {work, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        Window::Set& set = window.sets.next();
        const StoredTensor<Stored>& values = all_values.next();
        cuda::window_change_scores<Stored>(Change::joint, window.view(set), values.view(),
                                           window.log_sum_exps.data(),
                                           {outputs.data(), norms.data(), dominant.data(), norms.data()},
                                           lengths.data(), set.numbers.data(), stream);
      });
}

// The scores of a prompt's tokens: pooled, reduced over groups, multiplied by norms.
struct Scores {
  explicit Scores(const BenchOptions& options)
      : shape(options.shape.layer), tokens(options.shape.tokens), sets([this, &options] {
          const std::vector<float> numbers =
              random_scores(shape.query_heads * tokens, BenchLayer::random(options, 18));
          return Set{uploaded(shape.query_heads, tokens, numbers),
                     uploaded(shape.query_heads, tokens, numbers),
                     {shape.kv_heads, tokens}};
        }) {}

  struct Set {
    DeviceMatrix scores, others, reduced;
    double bytes() const { return traffic(scores, reduced); }
  };

  LayerShape shape;
  int64_t tokens;
  Rotation<Set> sets;
};

BenchResult bench_max_pool(const BenchOptions& options) {
  Scores scores(options);
  const double bytes = 2 * bytes_of(scores.sets.next().scores);
  return measure_on_device(options, "max-pool", {{bytes, 0}, Roofline::time, kLatencyGoal},
                           [&](cuda::Stream stream) {
                             Scores::Set& set = scores.sets.next();
                             cuda::max_pool(set.scores.data(), scores.shape.query_heads, scores.tokens,
                                            scores.tokens, 7, set.others.data(), stream);
                           });
}

BenchResult bench_reduce_group(const BenchOptions& options) {
  Scores scores(options);
  return measure_on_device(
      options, "reduce-group", {{scores.sets.bytes_of_one(), 0}, Roofline::time, kLatencyGoal},
      [&](cuda::Stream stream) {
        Scores::Set& set = scores.sets.next();
        cuda::reduce_group(set.scores.data(), scores.shape.query_heads, scores.tokens,
                           scores.shape.group_size(), GroupReduction::mean, set.reduced.data(), stream);
      });
}

BenchResult bench_stage_two_scores(const BenchOptions& options) {
  Scores scores(options);
  const Scores::Set& any = scores.sets.next();
  const double bytes = traffic(any.scores, any.others, any.reduced);
  return measure_on_device(
      options, "stage-two-scores", {{bytes, 0}, Roofline::time, kLatencyGoal}, [&](cuda::Stream stream) {
        Scores::Set& set = scores.sets.next();
        cuda::stage_two_scores(set.scores.data(), set.others.data(), scores.tokens, scores.shape.query_heads,
                               scores.shape.kv_heads, scores.tokens, 1e-4, GqaProduct::mean_of_products,
                               set.reduced.data(), stream);
      });
}

StoredTensor<Stored> projection_of(const BenchLayer& layer) {
  const LayerShape& shape = layer.shape;
  return {TensorView{layer.output_projection.data(), shape.query_heads, shape.head_dim, shape.model_dim,
                     shape.head_dim * shape.model_dim},
          kStream};
}

BenchResult bench_norms(const BenchOptions& options, const std::string& name, NormsKernel kernel) {
  struct Set {
    StoredTensor<Stored> values, output_projection;
    DeviceMatrix norms;
  };
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const DeviceWork work = projected_value_norms_work(shape, options.shape.tokens);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.values, kStream}, projection_of(layer), {shape.query_heads, options.shape.tokens}};
  });
  if (kernel == NormsKernel::chosen) kernel = cuda::chosen_norms_kernel<Stored>(shape.head_dim);
  const auto goal = [kernel]() -> std::optional<double> {
    switch (kernel) {
      case NormsKernel::wgmma:
        return kWarpgroupMatrixGoal;
      case NormsKernel::mma:
        return kMatrixGoal;
      case NormsKernel::portable:
      case NormsKernel::chosen:
        return std::nullopt;
    }
    return std::nullopt;
  }();
  return measure_on_device(options, name, {work, Roofline::matrix_rate, goal}, [&](cuda::Stream stream) {
    Set& set = sets.next();
    cuda::projected_value_norms<Stored>(std::as_const(set.values).view(),
                                        std::as_const(set.output_projection).view(), set.norms.data(), stream,
                                        kernel);
  });
}

BenchResult bench_chosen_norms(const BenchOptions& options) {
  return bench_norms(options, "projected-value-norms", NormsKernel::chosen);
}

BenchResult bench_mma_norms(const BenchOptions& options) {
  return bench_norms(options, "projected-value-norms-mma", NormsKernel::mma);
}

BenchResult bench_portable_norms(const BenchOptions& options) {
  return bench_norms(options, "projected-value-norms-portable", NormsKernel::portable);
}

BenchResult bench_gram_matrices(const BenchOptions& options) {
  struct Set {
    StoredTensor<Stored> output_projection;
    Buffer<float> gram, factor;
    double bytes() const { return traffic(output_projection, gram, factor); }
  };
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const int64_t numbers = shape.query_heads * shape.head_dim * shape.head_dim;
  Buffer<std::byte> workspace(cuda::gram_matrices_workspace(shape.query_heads, shape.head_dim));
  Rotation<Set> sets([&] {
    return Set{projection_of(layer), Buffer<float>(numbers), Buffer<float>(numbers)};
  });
  return measure_on_device(
      options, "gram-matrices", {{sets.bytes_of_one(), 0}, Roofline::copy_bandwidth, std::nullopt},
      [&](cuda::Stream stream) {
        Set& set = sets.next();
        cuda::gram_matrices<Stored>(std::as_const(set.output_projection).view(), set.gram.data(),
                                    set.factor.data(), all_of(workspace), stream);
      });
}

// By the factors of Gram matrices, of which half of the numbers count.
BenchResult bench_norms_l2(const BenchOptions& options) {
  struct Set {
    StoredTensor<Stored> values;
    DeviceMatrix norms;
    double bytes() const { return traffic(values, norms); }
  };
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = options.shape.tokens, numbers = shape.head_dim * (shape.head_dim + 1) / 2;
  const BenchLayer layer(options);
  const Buffer<float> factor = uploaded(
      random_numbers(shape.query_heads * shape.head_dim * shape.head_dim, BenchLayer::random(options, 19)));
  Rotation<Set> sets([&] { return Set{{layer.values, kStream}, {shape.query_heads, tokens}}; });
  const DeviceWork work{sets.bytes_of_one() + traffic(factor),
                        2 * as_real(shape.query_heads * tokens * numbers)};
  return measure_on_device(options, "projected-value-norms-l2", {work, Roofline::matrix_rate, std::nullopt},
                           [&](cuda::Stream stream) {
                             Set& set = sets.next();
                             cuda::projected_value_norms_l2<Stored>(std::as_const(set.values).view(),
                                                                    factor.data(), shape.query_heads,
                                                                    set.norms.data(), stream);
                           });
}

constexpr BenchOperation kScoresOperations[] = {
    {"attention", "K1: one query per query head over the whole cache, logits written", bench_full_attention},
    {"attention-compressed", "K1 over the 20 % kept", bench_compressed_attention},
    {"window-attention", "K2: mean attention of 32 queries per head, log-sum-exp known",
     bench_window_attention},
    {"window-log-sum-exp", "K2: the log-sum-exp of these queries", bench_window_log_sum_exp},
    {"window-change-scores", "K2': OBCache's joint score, log-sum-exp and outputs known",
     bench_change_scores},
    {"prompt-averages", "KeepKV's moving averages over the same queries", bench_prompt_averages},
    {"max-pool", "scores pooled over 7 tokens", bench_max_pool},
    {"reduce-group", "scores averaged over the query heads of a group", bench_reduce_group},
    {"projected-value-norms", "K3: L1 norms of all heads, by the kernel that is chosen", bench_chosen_norms},
    {"projected-value-norms-mma", "K3 by mma.sync", bench_mma_norms},
    {"projected-value-norms-portable", "K3 without tensor cores", bench_portable_norms},
    {"stage-two-scores", "attention times projected value norms", bench_stage_two_scores},
    {"gram-matrices", "W^O times its transpose for every query head, and its Cholesky factor",
     bench_gram_matrices},
    {"projected-value-norms-l2", "K3 in L2, by these factors", bench_norms_l2},
};

}  // namespace

std::span<const BenchOperation> score_operations() { return kScoresOperations; }

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
