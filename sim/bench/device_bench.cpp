// Compiled twice, once for each build of the kernels: directly, and included by device_bench_native.cpp.
#include "device_bench.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/roofline/roofline.hpp>
#include <kvbound/cuda/session/compaction.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "bench_layer.hpp"
#include "device_measure.hpp"
#include "device_sessions.hpp"
#include "device_work.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

using cuda::Buffer;
using cuda::DeviceMatrix;
using cuda::IndexLists;
using cuda::NormsKernel;
using cuda::SearchKernel;
using cuda::StoredTensor;

constexpr double kSelectionGoal = 15e-6;  // seconds

BenchResult bench_attention(const BenchOptions& options, const std::string& name, int64_t entries) {
  struct Set {
    StoredTensor<Stored> keys, values;
    DeviceMatrix output, log_sum_exp, logits;
  };
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const StoredTensor<Stored> queries(
      random_tensor(1, shape.query_heads, shape.head_dim, BenchLayer::random(options, 10)), kStream);
  const Buffer<int64_t> counts(std::span<const int64_t>(std::vector<int64_t>(shape.kv_heads, entries)));
  const DeviceWork work = attention_work(shape, entries);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.keys.view().middle_rows(0, entries), kStream},
               {layer.values.view().middle_rows(0, entries), kStream},
               {shape.query_heads, shape.head_dim},
               {1, shape.query_heads},
               {shape.query_heads, entries}};
  });
  Buffer<std::byte> workspace(
      cuda::attention_workspace(shape.query_heads, shape.kv_heads, shape.head_dim, entries));
  return measure_on_device(options, name, {work, Roofline::copy_bandwidth, kCopyGoal}, [&] {
    Set& set = sets.next();
    cuda::attention<Stored>(
        queries.view(),
        {std::as_const(set.keys).view(), std::as_const(set.values).view(), counts.data(), nullptr},
        scale(shape), {set.output.data(), set.log_sum_exp.data(), set.logits.data()},
        {workspace.data(), workspace.bytes()}, kStream);
  });
}

BenchResult bench_full_attention(const BenchOptions& options) {
  return bench_attention(options, "attention", options.shape.tokens);
}

BenchResult bench_compressed_attention(const BenchOptions& options) {
  return bench_attention(options, "attention-compressed", bench_budgets(options).front());
}

// Operations of the observation window over the whole prompt.
struct Window {
  explicit Window(const BenchOptions& options)
      : shape(options.shape.layer),
        tokens(options.shape.tokens),
        sets(window_attention_work(shape, BenchLayer::kWindow, tokens).bytes,
             [this, layer = BenchLayer(options)] {
               return Set{{layer.queries, kStream},
                          {layer.keys, kStream},
                          {shape.query_heads, BenchLayer::kWindow},
                          {shape.query_heads, tokens}};
             }),
        workspace(cuda::window_log_sum_exp_workspace(shape.query_heads, BenchLayer::kWindow, tokens)) {}

  struct Set {
    StoredTensor<Stored> queries, keys;
    DeviceMatrix log_sum_exp, mean;
  };

  void log_sum_exp() { log_sum_exp(sets.next()); }
  void attention() {
    Set& set = sets.next();
    cuda::window_attention<Stored>(view(set), log_sum_exps.data(), WindowReduction::mean, set.mean.data(),
                                   kStream);
  }
  // Computes the log-sum-exps that attention() needs; once, because all sets hold the same numbers.
  void prepare_attention() {
    Set& set = sets.next();
    log_sum_exp(set);
    log_sum_exps = std::exchange(set.log_sum_exp, DeviceMatrix(shape.query_heads, BenchLayer::kWindow));
  }

  cuda::WindowView<Stored> view(const Set& set) const {
    return {set.queries.view(), set.keys.view(), scale(shape)};
  }
  void log_sum_exp(Set& set) {
    cuda::window_log_sum_exp<Stored>(view(set), set.log_sum_exp.data(), {workspace.data(), workspace.bytes()},
                                     kStream);
  }

  LayerShape shape;
  int64_t tokens;
  Rotation<Set> sets;
  Buffer<std::byte> workspace;
  DeviceMatrix log_sum_exps;
};

BenchResult bench_window_attention(const BenchOptions& options) {
  Window window(options);
  window.prepare_attention();
  const DeviceWork work = window_attention_work(window.shape, BenchLayer::kWindow, window.tokens);
  return measure_on_device(options, "window-attention", {work, Roofline::copy_bandwidth, kCopyGoal},
                           [&] { window.attention(); });
}

BenchResult bench_window_log_sum_exp(const BenchOptions& options) {
  Window window(options);
  const DeviceWork work = window_log_sum_exp_work(window.shape, BenchLayer::kWindow, window.tokens);
  return measure_on_device(options, "window-log-sum-exp", {work, Roofline::copy_bandwidth, kCopyGoal},
                           [&] { window.log_sum_exp(); });
}

// OBCache's joint score over the whole prompt, in the head's space; the queries' outputs are random.
BenchResult bench_change_scores(const BenchOptions& options) {
  struct Set {
    StoredTensor<Stored> queries, keys, values;
    Buffer<float> gram_outputs;
    DeviceMatrix scores;
  };
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = options.shape.tokens, queries = shape.query_heads * BenchLayer::kWindow;
  const BenchLayer layer(options);
  std::vector<float> outputs(queries * shape.head_dim);
  const traces::Stream random = BenchLayer::random(options, 15);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = static_cast<float>(random.normal(i));
  const DeviceWork work = window_change_scores_work(shape, BenchLayer::kWindow, tokens);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.queries, kStream},
               {layer.keys, kStream},
               {layer.values, kStream},
               Buffer<float>(std::span<const float>(outputs)),
               {shape.query_heads, tokens}};
  });
  DeviceMatrix log_sum_exps(shape.query_heads, BenchLayer::kWindow), lengths(shape.query_heads, tokens);
  Buffer<float> norms(
      std::span<const float>(std::vector<float>(queries, static_cast<float>(shape.head_dim))));
  Buffer<int64_t> dominant(std::span<const int64_t>(std::vector<int64_t>(queries, -1)));
  const auto window = [&](const Set& set) {
    return cuda::WindowView<Stored>{set.queries.view(), set.keys.view(), scale(shape)};
  };
  Buffer<std::byte> workspace(
      cuda::window_log_sum_exp_workspace(shape.query_heads, BenchLayer::kWindow, tokens));
  cuda::window_log_sum_exp<Stored>(window(sets.next()), log_sum_exps.data(),
                                   {workspace.data(), workspace.bytes()}, kStream);
  cuda::squared_norms<Stored>(std::as_const(sets.next().values).view(), nullptr, shape.query_heads,
                              lengths.data(), kStream);
  return measure_on_device(options, "window-change-scores", {work, Roofline::copy_bandwidth, kCopyGoal}, [&] {
    Set& set = sets.next();
    cuda::window_change_scores<Stored>(Change::joint, window(set), std::as_const(set.values).view(),
                                       log_sum_exps.data(),
                                       {set.gram_outputs.data(), norms.data(), dominant.data(), norms.data()},
                                       lengths.data(), set.scores.data(), kStream);
  });
}

BenchResult bench_norms(const BenchOptions& options, const std::string& name, NormsKernel kernel) {
  struct Set {
    StoredTensor<Stored> values, output_projection;
    DeviceMatrix norms;
  };
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const TensorView projection{layer.output_projection.data(), shape.query_heads, shape.head_dim,
                              shape.model_dim, shape.head_dim * shape.model_dim};
  const DeviceWork work = projected_value_norms_work(shape, options.shape.tokens);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.values, kStream}, {projection, kStream}, {shape.query_heads, options.shape.tokens}};
  });
  const auto goal = kernel == NormsKernel::mma ? std::optional(kMatrixGoal) : std::nullopt;
  return measure_on_device(options, name, {work, Roofline::matrix_rate, goal}, [&] {
    Set& set = sets.next();
    cuda::projected_value_norms<Stored>(std::as_const(set.values).view(),
                                        std::as_const(set.output_projection).view(), Norm::l1,
                                        set.norms.data(), kStream, kernel);
  });
}

BenchResult bench_mma_norms(const BenchOptions& options) {
  return bench_norms(options, "projected-value-norms", NormsKernel::mma);
}

BenchResult bench_portable_norms(const BenchOptions& options) {
  return bench_norms(options, "projected-value-norms-portable", NormsKernel::portable);
}

// Scores distributed as after a softmax: most are nearly 0, and a few hold almost all of the sum.
std::vector<float> random_scores(int64_t count, const traces::Stream& random) {
  std::vector<float> scores(count);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>(std::exp(8 * random.normal(i)));
  }
  return scores;
}

// The candidates and counts of a selection at 20 %.
struct Candidates {
  explicit Candidates(const BenchOptions& options)
      : rows(options.shape.layer.kv_heads),
        cols(options.shape.tokens - BenchLayer::kWindow),
        k(bench_budgets(options).front() - BenchLayer::kWindow),
        scores(random_scores(rows * cols, BenchLayer::random(options, 11))),
        stage_two_scores(random_scores(rows * cols, BenchLayer::random(options, 12))),
        counts(std::span<const int64_t>(std::vector<int64_t>(rows, k))),
        stage_one_counts(std::span<const int64_t>(std::vector<int64_t>(rows, k / 2))),
        status(1) {
    status.clear(kStream);
  }

  cuda::SelectionResult into(IndexLists& lists) { return {lists.data(), lists.stride(), status.data()}; }

  int64_t rows, cols, k;
  std::vector<float> scores, stage_two_scores;
  Buffer<int64_t> counts, stage_one_counts;
  Buffer<int> status;
};

BenchResult bench_select_top(const BenchOptions& options) {
  struct Set {
    Buffer<float> scores;
    IndexLists selected;
  };
  Candidates from(options);
  const DeviceWork work = select_top_work(from.rows, from.cols, from.k);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{Buffer<float>(std::span<const float>(from.scores)), IndexLists(from.rows, from.k)};
  });
  Buffer<std::byte> workspace(cuda::select_top_workspace(from.rows, from.cols));
  return measure_on_device(options, "select-top", {work, Roofline::time, kSelectionGoal}, [&] {
    Set& set = sets.next();
    cuda::select_top(set.scores.data(), from.rows, from.cols, from.cols, from.counts.data(),
                     from.into(set.selected), {workspace.data(), workspace.bytes()}, kStream);
  });
}

BenchResult bench_select_critical(const BenchOptions& options) {
  struct Set {
    Buffer<float> scores, stage_two_scores;
    IndexLists selected, stage_one;
  };
  Candidates from(options);
  const DeviceWork work = select_critical_work(from.rows, from.cols, from.k, from.k / 2);
  Rotation<Set> sets(work.bytes, [&] {
    return Set{Buffer<float>(std::span<const float>(from.scores)),
               Buffer<float>(std::span<const float>(from.stage_two_scores)), IndexLists(from.rows, from.k),
               IndexLists(from.rows, from.k)};
  });
  Buffer<std::byte> workspace(cuda::select_critical_workspace(from.rows, from.cols));
  return measure_on_device(options, "select-critical", {work, Roofline::time, kSelectionGoal}, [&] {
    Set& set = sets.next();
    cuda::select_critical(set.scores.data(), set.stage_two_scores.data(), from.rows, from.cols, from.cols,
                          from.counts.data(), from.stage_one_counts.data(), from.into(set.selected),
                          from.into(set.stage_one), {workspace.data(), workspace.bytes()}, kStream);
  });
}

// Random kept positions, different for every KV head.
IndexLists random_kept(const BenchOptions& options) {
  const std::vector<int64_t> budgets = bench_budgets(options);
  IndexLists kept(options.shape.layer.kv_heads, budgets.front());
  for (int64_t g = 0; g < options.shape.layer.kv_heads; ++g) {
    const traces::Stream random = BenchLayer::random(options, 13).child(static_cast<uint64_t>(g));
    std::vector<double> scores(options.shape.tokens);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = random.uniform(i);
    kept.upload(g, 0, reference::select_top(scores, budgets.front()), kStream);
  }
  return kept;
}

BenchResult bench_compact(const BenchOptions& options) {
  struct Set {
    StoredTensor<Stored> keys, values, kept_keys, kept_values;
  };
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const std::vector<int64_t> budgets = bench_budgets(options);
  const DeviceWork work = compact_work(shape, budgets.front());
  IndexLists kept = random_kept(options);
  const Buffer<int64_t> counts((std::span<const int64_t>(budgets)));
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.keys, kStream},
               {layer.values, kStream},
               {shape.kv_heads, budgets.front(), shape.head_dim},
               {shape.kv_heads, budgets.front(), shape.head_dim}};
  });
  return measure_on_device(options, "compact", {work, Roofline::copy_bandwidth, kCopyGoal}, [&] {
    Set& set = sets.next();
    cuda::compact<Stored>(std::as_const(set.keys).view(), kept.data(), kept.stride(), counts.data(),
                          set.kept_keys.view(), kStream);
    cuda::compact<Stored>(std::as_const(set.values).view(), kept.data(), kept.stride(), counts.data(),
                          set.kept_values.view(), kStream);
  });
}

BenchResult bench_search(const BenchOptions& options, const std::string& name, SearchKernel kernel) {
  struct Set {
    StoredTensor<Stored> keys, kept;
    Buffer<int64_t> index;
    Buffer<float> cosine;
  };
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = options.shape.tokens, heads = shape.kv_heads;
  const BenchLayer layer(options);
  const std::vector<int64_t> budgets = bench_budgets(options);
  const DeviceWork work = nearest_keys_work(shape, tokens, budgets.front());
  Rotation<Set> sets(work.bytes, [&] {
    return Set{{layer.keys, kStream},
               {heads, budgets.front(), shape.head_dim},
               Buffer<int64_t>(heads * tokens),
               Buffer<float>(heads * tokens)};
  });
  IndexLists kept = random_kept(options), leaving(heads, tokens);
  Buffer<int64_t> counts((std::span<const int64_t>(budgets))), leaving_counts(heads);
  Buffer<std::byte> workspace(cuda::merge_targets_workspace(heads, tokens));
  cuda::entries_left_out({kept.data(), counts.data(), kept.stride()}, heads, tokens,
                         {leaving.data(), leaving_counts.data(), leaving.stride()},
                         {workspace.data(), workspace.bytes()}, kStream);
  DeviceMatrix norms(heads, tokens), kept_norms(heads, budgets.front());
  const auto prepare = [&](Set& set) {
    cuda::compact<Stored>(std::as_const(set.keys).view(), kept.data(), kept.stride(), counts.data(),
                          set.kept.view(), kStream);
    cuda::key_norms<Stored>(std::as_const(set.keys).view(), nullptr, norms.data(), kStream);
    cuda::key_norms<Stored>(std::as_const(set.kept).view(), nullptr, kept_norms.data(), kStream);
  };
  sets.for_each(prepare);
  const auto goal = kernel == SearchKernel::mma ? std::optional(kMatrixGoal) : std::nullopt;
  return measure_on_device(options, name, {work, Roofline::matrix_rate, goal}, [&] {
    Set& set = sets.next();
    cuda::nearest_keys<Stored>({std::as_const(set.keys).view(), norms.data(), nullptr}, leaving.data(),
                               leaving.stride(), leaving_counts.data(),
                               {std::as_const(set.kept).view(), kept_norms.data(), counts.data()},
                               {set.index.data(), set.cosine.data(), tokens}, kStream, kernel);
  });
}

BenchResult bench_mma_search(const BenchOptions& options) {
  return bench_search(options, "nearest-keys", SearchKernel::mma);
}

BenchResult bench_portable_search(const BenchOptions& options) {
  return bench_search(options, "nearest-keys-portable", SearchKernel::portable);
}

constexpr BenchOperation kOperations[] = {
    {"attention", "K1: one query per query head over the whole cache, logits written", bench_full_attention},
    {"attention-compressed", "K1 over the 20 % kept", bench_compressed_attention},
    {"window-attention", "K2: mean attention of 32 queries per head, log-sum-exp known",
     bench_window_attention},
    {"window-log-sum-exp", "K2: the log-sum-exp of these queries", bench_window_log_sum_exp},
    {"window-change-scores", "K2': OBCache's joint score, log-sum-exp and outputs known",
     bench_change_scores},
    {"projected-value-norms", "K3: L1 norms of all heads, on tensor cores", bench_mma_norms},
    {"projected-value-norms-portable", "K3 without tensor cores", bench_portable_norms},
    {"select-top", "K4: the best 20 % of every KV head", bench_select_top},
    {"select-critical", "K4: the same in two stages", bench_select_critical},
    {"compact", "K5: keys and values of the 20 % kept, made contiguous", bench_compact},
    {"nearest-keys", "K6: the kept key of largest cosine for every evicted one, on tensor cores",
     bench_mma_search},
    {"nearest-keys-portable", "K6 without tensor cores", bench_portable_search},
    {"compress", "a layer by a policy (--policy) at 20 %, as a session does it", bench_compress, true},
    {"step", "a decode step by a policy (--policy) at 20 %, against attention over the same cache",
     bench_step, true},
};

std::optional<std::string> driver() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  return kNative && std::getline(file, version) && !version.empty() ? std::optional(version) : std::nullopt;
}

}  // namespace

Accelerator accelerator() {
  const cuda::DeviceInfo& info = cuda::device();
  Accelerator found{info.name,
                    info.compute_capability,
                    info.multiprocessors,
                    info.memory,
                    info.l2_bytes,
                    driver(),
                    std::nullopt,
                    ""};
  if (const auto library = cuda::MatrixLibrary::open(&found.no_matrix_library))
    found.matrix_library = library->name();
  return found;
}

std::span<const BenchOperation> bench_operations() { return kOperations; }

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
