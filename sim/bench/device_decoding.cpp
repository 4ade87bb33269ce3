#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/merging/cam.hpp>
#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/merging/score_ema.hpp>
#include <kvbound/cuda/session/append.hpp>
#include <kvbound/cuda/session/head_eviction.hpp>
#include <kvbound/cuda/session/layer_cache.hpp>
#include <kvbound/cuda/session/pack.hpp>

#include "device_inputs.hpp"
#include "device_operations.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

using cuda::Buffer;
using cuda::DeviceMatrix;
using cuda::PackedStretch;
using cuda::StoredTensor;

constexpr PredictedScores kAverages{};

// A full cache of 20 %, with room for one entry more as a session has it. It stays in the L2 cache from one
// call to the next, as it does behind a step's attention.
struct StepCache {
  explicit StepCache(const BenchOptions& options)
      : shape(options.shape.layer),
        capacity(cuda::LayerCache<Stored>::capacity_for(bench_budgets(options).front(), true)),
        keys(random_tensor(shape.kv_heads, capacity, shape.head_dim, BenchLayer::random(options, 16)),
             kStream),
        values(random_tensor(shape.kv_heads, capacity, shape.head_dim, BenchLayer::random(options, 17)),
               kStream),
        logits(uploaded(shape.query_heads, capacity,
                        random_numbers(shape.query_heads * capacity, BenchLayer::random(options, 23)))),
        outputs(
            uploaded(shape.query_heads, shape.head_dim,
                     random_numbers(shape.query_heads * shape.head_dim, BenchLayer::random(options, 24)))),
        log_sum_exp(uploaded(1, shape.query_heads, std::vector<float>(shape.query_heads, 10))),
        numbers(shape.query_heads, capacity),
        reduced(shape.kv_heads, capacity),
        entries(uploaded(shape.kv_heads, capacity)),
        free(uploaded(shape.kv_heads, int64_t{1})),
        newest(uploaded(shape.kv_heads, capacity - 1)),
        budgets(uploaded(shape.kv_heads, capacity - 1)),
        merged_into(shape.kv_heads),
        newest_positions(uploaded(shape.kv_heads, capacity)),
        status(1) {
    std::vector<int64_t> all(shape.kv_heads * capacity);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i) % capacity;
    positions = uploaded(all);
    numbers.clear(kStream);
    status.clear(kStream);
  }

  cuda::CacheView<Stored> view() const { return {keys.view(), values.view(), entries.data()}; }
  cuda::CacheSlots slots() {
    return {shape.kv_heads, capacity, entries.data(), free.data(), newest.data(), positions.data()};
  }
  cuda::AttendedQueries queries() const { return {1, outputs.data(), logits.data(), log_sum_exp.data(), {}}; }
  cuda::EvictionRules rules() const { return {0, 0, false, budgets.data()}; }
  // Running scores are updated by one step's attention.
  cuda::ScoreUpdate update() {
    return {{nullptr, logits.data(), log_sum_exp.data()},
            StepUpdate::accumulate,
            GroupReduction::mean,
            {numbers.data(), reduced.data()}};
  }
  void score(cuda::Stream stream) { cuda::update_scores(update(), slots(), shape.query_heads, stream); }

  LayerShape shape;
  int64_t capacity;
  StoredTensor<Stored> keys, values;
  DeviceMatrix logits, outputs, log_sum_exp, numbers, reduced;
  Buffer<int64_t> entries, free, newest, budgets, merged_into, newest_positions, positions;
  Buffer<int> status;
};

// Part of a step: what counts is how long it takes.
BenchResult measure_step(const BenchOptions& options, const std::string& name, double bytes, double flop,
                         const Call& call) {
  return measure_on_device(options, name, {{bytes, flop}, Roofline::time, kLatencyGoal}, call);
}

BenchResult bench_update_scores(const BenchOptions& options) {
  StepCache cache(options);
  const double bytes = traffic(cache.logits, cache.log_sum_exp, cache.reduced) + 2 * bytes_of(cache.numbers);
  return measure_step(options, "update-scores", bytes, 0, [&](cuda::Stream stream) { cache.score(stream); });
}

using Evict = std::function<void(const cuda::NewEntries& next, cuda::Stream stream)>;

// The smallest running score of every KV head leaves, and the next entry takes its place.
BenchResult bench_append_evict(const BenchOptions& options, const std::string& name, StepCache& cache,
                               double bytes_of_eviction, const Evict& evict) {
  cache.score(kStream);
  const StoredTensor<Stored> entry(
      random_tensor(cache.shape.kv_heads, 1, cache.shape.head_dim, BenchLayer::random(options, 25)), kStream);
  const double bytes = 6 * bytes_of(entry) + traffic(cache.positions) + bytes_of_eviction;
  cuda::append<Stored>(entry.view(), entry.view(), cache.keys.view(), cache.values.view(), cache.slots(),
                       cache.newest_positions.data(), nullptr, kStream);
  const cuda::NewEntries next =
      cuda::new_entries<Stored>(entry.view(), entry.view(), cache.keys.view(), cache.values.view(),
                                cache.slots(), cache.newest_positions.data());
  return measure_step(options, name, bytes, 0, [&](cuda::Stream stream) { evict(next, stream); });
}

BenchResult bench_evict(const BenchOptions& options) {
  StepCache cache(options);
  const double bytes = traffic(cache.logits, cache.log_sum_exp) + 2 * bytes_of(cache.numbers);
  return bench_append_evict(
      options, "append-evict", cache, bytes, [&](const cuda::NewEntries& next, cuda::Stream stream) {
        cuda::evict(cache.rules(), cache.slots(), cache.update(), next, cache.shape.query_heads,
                    cache.newest_positions.data(), cache.merged_into.data(), cache.status.data(), stream);
      });
}

// Stage one takes half of what stays.
BenchResult bench_evict_critical(const BenchOptions& options) {
  StepCache cache(options);
  const DeviceMatrix norms = uploaded(cache.shape.query_heads, cache.capacity,
                                      std::vector<float>(cache.shape.query_heads * cache.capacity, 1.0f));
  std::vector<int64_t> halves(cache.capacity + 1);
  for (size_t k = 0; k < halves.size(); ++k) halves[k] = static_cast<int64_t>(k) / 2;
  const Buffer<int64_t> counts = uploaded(halves);
  const cuda::EvictionStages stages{cache.numbers.data(), norms.data(), counts.data(), nullptr, 1e-4};
  const double bytes = traffic(cache.reduced, cache.numbers, norms);
  return bench_append_evict(
      options, "append-evict-critical", cache, bytes, [&](const cuda::NewEntries& next, cuda::Stream stream) {
        cuda::evict_critical(cache.rules(), cache.slots(), cache.reduced.data(), stages, next,
                             cache.shape.query_heads, cache.newest_positions.data(), cache.merged_into.data(),
                             cache.status.data(), stream);
      });
}

// What a step's queries need to be scored by OBCache's joint score. The first entry is
// every query's dominant one.
struct Measures {
  explicit Measures(const StepCache& cache)
      : shape(cache.shape),
        gram_outputs(shape.query_heads, shape.head_dim),
        output_norms(1, shape.query_heads),
        dominant_scores(1, shape.query_heads),
        dominant_logits(uploaded(1, shape.query_heads, std::vector<float>(shape.query_heads, 11))),
        others(uploaded(shape.query_heads, shape.head_dim,
                        std::vector<float>(shape.query_heads * shape.head_dim, 1))),
        others_log_sum_exp(uploaded(1, shape.query_heads, std::vector<float>(shape.query_heads, 10))),
        rows(uploaded(shape.query_heads, int64_t{0})),
        dominant(shape.query_heads) {}

  cuda::MeasuredQueries view() {
    return {gram_outputs.data(), output_norms.data(), dominant.data(), dominant_scores.data()};
  }
  void measure(const StepCache& cache, cuda::Stream stream) {
    cuda::AttendedQueries queries = cache.queries();
    queries.dominants = {rows.data(), dominant_logits.data(), others.data(), others_log_sum_exp.data()};
    cuda::measure_queries<Stored>(Change::joint, cache.view(), queries, nullptr, shape.query_heads, view(),
                                  stream);
  }

  LayerShape shape;
  DeviceMatrix gram_outputs, output_norms, dominant_scores, dominant_logits, others, others_log_sum_exp;
  Buffer<int64_t> rows, dominant;
};

BenchResult bench_measure_queries(const BenchOptions& options) {
  StepCache cache(options);
  Measures measures(cache);
  const double bytes = traffic(cache.outputs, measures.others, measures.rows, measures.dominant_logits,
                               measures.others_log_sum_exp, measures.gram_outputs, measures.output_norms,
                               measures.dominant, measures.dominant_scores);
  return measure_step(options, "measure-queries", bytes, 0,
                      [&](cuda::Stream stream) { measures.measure(cache, stream); });
}

BenchResult bench_step_change_scores(const BenchOptions& options) {
  StepCache cache(options);
  Measures measures(cache);
  measures.measure(cache, kStream);
  const DeviceMatrix lengths = uploaded(
      cache.shape.query_heads, cache.capacity,
      std::vector<float>(cache.shape.query_heads * cache.capacity, static_cast<float>(cache.shape.head_dim)));
  const double bytes = traffic(cache.values, cache.logits, lengths, cache.numbers, measures.gram_outputs);
  const double flop = 2 * as_real(cache.shape.query_heads * cache.capacity * cache.shape.head_dim);
  return measure_step(options, "step-change-scores", bytes, flop, [&](cuda::Stream stream) {
    cuda::step_change_scores<Stored>(Change::joint, cache.view(), cache.queries(), measures.view(),
                                     lengths.data(), cache.shape.query_heads, cache.numbers.data(), stream);
  });
}

// The nearest key of the evicted entry, and its cluster.
struct StepTarget {
  explicit StepTarget(StepCache& cache)
      : norms(cache.shape.kv_heads, cache.capacity),
        cosine(cache.shape.kv_heads, 1),
        index(cache.shape.kv_heads),
        kept(cache.shape.kv_heads),
        count(cache.shape.kv_heads),
        members(cache.shape.kv_heads),
        offsets(2 * cache.shape.kv_heads) {
    cuda::key_norms<Stored>(std::as_const(cache.keys).view(), nullptr, norms.data(), kStream);
  }

  cuda::NearestKeys found() { return {index.data(), cosine.data(), 1}; }
  cuda::PositionLists kept_list() { return {kept.data(), count.data(), 1}; }
  cuda::Clusters clusters() { return {members.data(), 1, offsets.data(), 1}; }
  void join(StepCache& cache, cuda::Stream stream) {
    cuda::join_nearest<Stored>({std::as_const(cache.keys).view(), norms.data()}, cache.slots(), found(),
                               {std::nullopt}, kept_list(), clusters(), cache.merged_into.data(), stream);
  }

  DeviceMatrix norms, cosine;
  Buffer<int64_t> index, kept, count, members, offsets;
};

BenchResult bench_nearest_key(const BenchOptions& options) {
  StepCache cache(options);
  StepTarget target(cache);
  const double flop = 2 * as_real(cache.shape.kv_heads * cache.capacity * cache.shape.head_dim);
  return measure_step(options, "nearest-key", traffic(cache.keys, target.norms, cache.positions), flop,
                      [&](cuda::Stream stream) { target.join(cache, stream); });
}

// KeepKV's moving averages of a cache.
struct Averages {
  explicit Averages(const LayerShape& shape, int64_t capacity)
      : exponents(shape.query_heads, capacity),
        mantissas(shape.query_heads, capacity),
        weights(shape.kv_heads, capacity),
        log_seen(uploaded(shape.kv_heads, -0.1f)) {
    exponents.clear(kStream);
    mantissas.clear(kStream);
    weights.clear(kStream);
  }

  cuda::ScoreAverages view() { return {exponents.data(), mantissas.data(), weights.data(), weights.cols()}; }
  void observe(StepCache& cache, cuda::Stream stream) {
    cuda::observe_scores(kAverages, cache.logits.data(), cache.log_sum_exp.data(), cache.slots(),
                         cache.shape.query_heads, view(), log_seen.data(), cache.numbers.data(), stream);
  }
  double bytes() const { return traffic(exponents, mantissas, weights); }

  DeviceMatrix exponents, mantissas, weights;
  Buffer<float> log_seen;
};

BenchResult bench_observe_scores(const BenchOptions& options) {
  StepCache cache(options);
  Averages averages(cache.shape, cache.capacity);
  return measure_step(options, "observe-scores", 2 * averages.bytes() + traffic(cache.logits, cache.numbers),
                      0, [&](cuda::Stream stream) { averages.observe(cache, stream); });
}

BenchResult bench_predicted_scores(const BenchOptions& options) {
  StepCache cache(options);
  Averages averages(cache.shape, cache.capacity);
  averages.observe(cache, kStream);
  return measure_step(
      options, "predicted-scores", averages.bytes() + bytes_of(cache.numbers), 0, [&](cuda::Stream stream) {
        cuda::predicted_scores(kAverages, averages.view(), cache.shape.query_heads, cache.shape.kv_heads,
                               cache.entries.data(), averages.log_seen.data(), cache.numbers.data(), stream);
      });
}

// Replaces the predicted score of the one merged entry of every KV head.
BenchResult bench_replace_scores(const BenchOptions& options) {
  StepCache cache(options);
  StepTarget target(cache);
  target.join(cache, kStream);
  Averages averages(cache.shape, cache.capacity);
  averages.observe(cache, kStream);
  DeviceMatrix log_scores(cache.shape.query_heads, 1);
  log_scores.clear(kStream);
  const double bytes = traffic(log_scores, target.kept, target.offsets) + 2 * bytes_of(log_scores);
  return measure_step(options, "replace-scores", bytes, 0, [&](cuda::Stream stream) {
    cuda::replace_scores(kAverages, log_scores.data(),
                         {target.kept_list(), target.clusters(), target.kept.data()}, cache.shape.query_heads,
                         cache.shape.kv_heads, averages.log_seen.data(), averages.view(), stream);
  });
}

BenchResult bench_mean_attention(const BenchOptions& options) {
  StepCache cache(options);
  return measure_step(options, "mean-attention", traffic(cache.logits, cache.log_sum_exp, cache.reduced), 0,
                      [&](cuda::Stream stream) {
                        cuda::mean_attention(cache.logits.data(), cache.log_sum_exp.data(),
                                             cache.shape.query_heads, cache.shape.kv_heads, cache.capacity,
                                             cache.entries.data(), cache.reduced.data(), stream);
                      });
}

// CaM: the evicted entry's value, over 32 others. It is 0, so that adding it again and again changes nothing.
BenchResult bench_spread_entry(const BenchOptions& options) {
  StepCache cache(options);
  const int64_t most = std::min(Cam{}.neighbours, cache.capacity);
  const DeviceMatrix attention = uploaded(cache.shape.kv_heads, cache.capacity,
                                          std::vector<float>(cache.shape.kv_heads * cache.capacity, 0.01f));
  cache.values =
      StoredTensor<Stored>(Tensor(cache.shape.kv_heads, cache.capacity, cache.shape.head_dim), kStream);
  Positions changed(cache.shape.kv_heads, most);
  const double rows = 2 * as_real((2 * most + 1) * cache.shape.kv_heads * cache.shape.head_dim);
  return measure_step(options, "spread-entry", rows + traffic(attention, cache.positions, changed.lists), 0,
                      [&](cuda::Stream stream) {
                        cuda::spread_entry<Stored>({}, attention.data(), cache.slots(), cache.values.view(),
                                                   changed.view(), cache.merged_into.data(),
                                                   cache.status.data(), stream);
                      });
}

// A step's results in one block: outputs, log-sum-exps, positions and merged rows.
BenchResult bench_pack(const BenchOptions& options) {
  StepCache cache(options);
  std::vector<PackedStretch> stretches;
  int64_t to = 0;
  const auto add = [&](const auto& buffer, int64_t bytes) {
    stretches.push_back({buffer.data(), bytes, to});
    to += (bytes + 15) / 16 * 16;
  };
  const int64_t row = cache.shape.kv_heads * cache.shape.head_dim;
  add(cache.outputs, cache.outputs.numbers().bytes());
  add(cache.log_sum_exp, cache.log_sum_exp.numbers().bytes());
  add(cache.merged_into, cache.merged_into.bytes());
  add(cache.keys.numbers(), row * 2);
  add(cache.values.numbers(), row * 2);
  add(cache.status, cache.status.bytes());
  Buffer<std::byte> packed(to);
  return measure_step(options, "pack", 2 * as_real(to), 0, [&](cuda::Stream stream) {
    cuda::pack(stretches, packed.data(), packed.size(), stream);
  });
}

constexpr BenchOperation kDecodingOperations[] = {
    {"update-scores", "a step's attention added to running scores", bench_update_scores},
    {"append-evict", "the smallest running score leaves, and the next entry takes its place", bench_evict},
    {"append-evict-critical", "the same in two stages", bench_evict_critical},
    {"measure-queries", "a step's outputs as OBCache's joint score needs them", bench_measure_queries},
    {"step-change-scores", "OBCache's joint score of a cache's entries", bench_step_change_scores},
    {"nearest-key", "K6: the key nearest to the evicted one, and their cluster", bench_nearest_key},
    {"observe-scores", "KeepKV's moving averages, by a step's queries", bench_observe_scores},
    {"predicted-scores", "what they predict", bench_predicted_scores},
    {"replace-scores", "what they predict of merged entries", bench_replace_scores},
    {"mean-attention", "CaM: a step's attention, averaged over groups", bench_mean_attention},
    {"spread-entry", "CaM: the evicted entry's value, over 32 others", bench_spread_entry},
    {"pack", "a step's results, in one block", bench_pack},
};

}  // namespace

std::span<const BenchOperation> decoding_operations() { return kDecodingOperations; }

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
