#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <kvbound/cuda/merging/cam.hpp>
#include <kvbound/cuda/merging/keep_kv.hpp>
#include <kvbound/cuda/merging/merge_baselines.hpp>
#include <kvbound/cuda/merging/merge_first.hpp>
#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/merging/weighted_mean.hpp>
#include <kvbound/cuda/session/compaction.hpp>
#include <kvbound/cuda/session/layer_cache.hpp>

#include "device_inputs.hpp"
#include "device_operations.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

using cuda::Buffer;
using cuda::DeviceMatrix;
using cuda::IndexLists;
using cuda::SearchKernel;
using cuda::StoredTensor;

constexpr SimilarTarget kAlways{std::nullopt};
constexpr KeyRule kJoint{};

// What a prompt keeps at 20 %, and what it evicts.
struct Entries {
  explicit Entries(const BenchOptions& options)
      : shape(options.shape.layer),
        tokens(options.shape.tokens),
        budget(bench_budgets(options).front()),
        kept(random_kept(options)),
        leaving(shape.kv_heads, tokens - budget),
        workspace(cuda::merge_targets_workspace(shape.kv_heads, tokens)) {
    cuda::entries_left_out(kept.view(), shape.kv_heads, tokens, leaving.view(), all_of(workspace), kStream);
  }

  int64_t evicted() const { return tokens - budget; }

  LayerShape shape;
  int64_t tokens, budget;
  Positions kept, leaving;
  Buffer<std::byte> workspace;
};

// Their clusters: every evicted entry merges, most of them into few kept ones, as into a sink. At 32K tokens
// the largest cluster has about 3,000 members. The cache into which they merge has a session's capacity.
struct MergingEntries : Entries {
  explicit MergingEntries(const BenchOptions& options)
      : Entries(options),
        capacity(cuda::LayerCache<Stored>::capacity_for(budget, true)),
        layer(options),
        nearest(1, shape.kv_heads * evicted()),
        cosines(shape.kv_heads, evicted()),
        members(shape.kv_heads, evicted()),
        offsets(shape.kv_heads * (capacity + 1)),
        status(1) {
    const traces::Stream random = BenchLayer::random(options, 20);
    std::vector<int64_t> rows(shape.kv_heads * evicted());
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = static_cast<int64_t>(as_real(budget) * std::pow(random.uniform(i), 4));
    }
    nearest.upload(0, 0, rows, kStream);
    cosines.clear(kStream);
    status.clear(kStream);
    form_clusters(kStream);
  }

  cuda::NearestKeys found() { return {nearest.data(), cosines.data(), evicted()}; }
  cuda::Clusters clusters() { return {members.data(), evicted(), offsets.data(), capacity}; }
  cuda::MergedEntries merged() { return {kept.view(), clusters()}; }
  void form_clusters(cuda::Stream stream) {
    cuda::form_clusters(leaving.view(), found(), kAlways, shape.kv_heads, tokens, clusters(),
                        all_of(workspace), stream);
  }

  int64_t capacity;
  BenchLayer layer;
  IndexLists nearest;
  DeviceMatrix cosines;
  IndexLists members;
  Buffer<int64_t> offsets;
  Buffer<int> status;
};

// The numbers of KeepKV's merge, for every query head separately.
struct Weights {
  explicit Weights(const MergingEntries& entries)
      : shape(entries.shape),
        rows(cuda::merging_rows(kJoint.gqa, shape.group_size())),
        kept(shape.query_heads, entries.capacity),
        members(shape.query_heads, entries.evicted()),
        divergences(shape.query_heads, entries.capacity),
        shares(shape.query_heads, entries.capacity),
        log_scores(shape.query_heads, entries.capacity),
        votes(shape.kv_heads, entries.capacity),
        log_votes(shape.kv_heads, entries.capacity) {}

  cuda::ClusterWeights view() { return {rows, kept.data(), members.data()}; }
  cuda::MergedNumbers numbers() {
    return {divergences.data(), shares.data(), nullptr, nullptr, log_scores.data()};
  }
  cuda::MergedVotes merged_votes() { return {votes.data(), log_votes.data(), votes.cols()}; }

  LayerShape shape;
  int64_t rows;
  DeviceMatrix kept, members, divergences, shares, log_scores, votes, log_votes;
};

// What weights a prompt's entries: their predicted scores.
struct Predicted {
  Predicted(const BenchOptions& options, Entries& entries)
      : scores(uploaded(
            entries.shape.query_heads, entries.tokens,
            random_numbers(entries.shape.query_heads * entries.tokens, BenchLayer::random(options, 21)))),
        counts(uploaded(entries.shape.kv_heads, entries.tokens)),
        denominators(1, entries.shape.query_heads) {
    cuda::log_denominators(view(), entries.shape.query_heads, entries.shape.kv_heads, counts.data(),
                           denominators.data(), kStream);
  }

  cuda::ScoredEntries view() const { return {scores.data(), nullptr, scores.cols()}; }

  DeviceMatrix scores;
  Buffer<int64_t> counts;
  DeviceMatrix denominators;
};

// Queues the weights that operations behind cluster_weights need.
void weigh(MergingEntries& entries, const Predicted& predicted, Weights& weights, cuda::Stream stream) {
  cuda::cluster_weights(kJoint, predicted.view(), entries.shape.query_heads, entries.shape.kv_heads,
                        predicted.denominators.data(), entries.merged(), weights.view(), weights.numbers(),
                        weights.merged_votes(), entries.status.data(), stream);
}

BenchResult bench_entries_left_out(const BenchOptions& options) {
  Entries entries(options);
  const DeviceWork work{traffic(entries.kept.lists, entries.kept.counts, entries.leaving.lists), 0};
  return measure_on_device(
      options, "entries-left-out", {work, Roofline::time, kLatencyGoal}, [&](cuda::Stream stream) {
        cuda::entries_left_out(entries.kept.view(), entries.shape.kv_heads, entries.tokens,
                               entries.leaving.view(), all_of(entries.workspace), stream);
      });
}

BenchResult bench_key_norms(const BenchOptions& options) {
  struct Set {
    StoredTensor<Stored> keys;
    DeviceMatrix norms;
    double bytes() const { return traffic(keys, norms); }
  };
  const BenchLayer layer(options);
  Rotation<Set> sets([&] {
    return Set{{layer.keys, kStream}, {layer.shape.kv_heads, options.shape.tokens}};
  });
  return measure_on_device(
      options, "key-norms", {{sets.bytes_of_one(), 0}, Roofline::copy_bandwidth, kCopyGoal},
      [&](cuda::Stream stream) {
        Set& set = sets.next();
        cuda::key_norms<Stored>(std::as_const(set.keys).view(), nullptr, set.norms.data(), stream);
      });
}

BenchResult bench_search(const BenchOptions& options, const std::string& name, SearchKernel kernel) {
  struct Set {
    StoredTensor<Stored> keys, kept;
    Buffer<int64_t> index;
    Buffer<float> cosine;
  };
  Entries entries(options);
  const LayerShape& shape = entries.shape;
  const BenchLayer layer(options);
  const DeviceWork work = nearest_keys_work(shape, entries.tokens, entries.budget);
  const cuda::PositionLists leaving = entries.leaving.view(), positions = entries.kept.view();
  DeviceMatrix norms(shape.kv_heads, entries.tokens), kept_norms(shape.kv_heads, entries.budget);
  Rotation<Set> sets(work.bytes, [&] {
    Set set{{layer.keys, kStream},
            {shape.kv_heads, entries.budget, shape.head_dim},
            Buffer<int64_t>(shape.kv_heads * entries.evicted()),
            Buffer<float>(shape.kv_heads * entries.evicted())};
    cuda::compact<Stored>(std::as_const(set.keys).view(), positions.positions, positions.stride,
                          positions.count, set.kept.view(), kStream);
    return set;
  });
  const Set& any = sets.next();
  cuda::key_norms<Stored>(any.keys.view(), nullptr, norms.data(), kStream);
  cuda::key_norms<Stored>(any.kept.view(), nullptr, kept_norms.data(), kStream);
  if (kernel == SearchKernel::chosen) kernel = cuda::chosen_search_kernel<Stored>(shape.head_dim);
  const auto goal = kernel == SearchKernel::wgmma ? std::optional(kWarpgroupMatrixGoal)
                    : kernel == SearchKernel::mma ? std::optional(kMatrixGoal)
                                                  : std::nullopt;
  return measure_on_device(options, name, {work, Roofline::matrix_rate, goal}, [&](cuda::Stream stream) {
    Set& set = sets.next();
    cuda::nearest_keys<Stored>({std::as_const(set.keys).view(), norms.data(), nullptr}, leaving.positions,
                               leaving.stride, leaving.count,
                               {std::as_const(set.kept).view(), kept_norms.data(), positions.count},
                               {set.index.data(), set.cosine.data(), entries.evicted()}, stream, kernel);
  });
}

BenchResult bench_nearest_keys(const BenchOptions& options) {
  return bench_search(options, "nearest-keys", SearchKernel::chosen);
}

BenchResult bench_mma_nearest_keys(const BenchOptions& options) {
  return bench_search(options, "nearest-keys-mma", SearchKernel::mma);
}

BenchResult bench_portable_nearest_keys(const BenchOptions& options) {
  return bench_search(options, "nearest-keys-portable", SearchKernel::portable);
}

// Of up to 8,192 tokens, because the products grow with their square. Only half of them are with keys of
// higher score, and only those count.
BenchResult bench_nearest_better_keys(const BenchOptions& options) {
  constexpr int64_t kMostTokens = 8192;
  struct Set {
    StoredTensor<Stored> keys;
    Buffer<int64_t> index;
    Buffer<float> cosine;
    double bytes() const { return traffic(keys, index, cosine); }
  };
  const LayerShape& shape = options.shape.layer;
  const int64_t tokens = std::min(options.shape.tokens, kMostTokens), numbers = shape.kv_heads * tokens;
  const BenchLayer layer(options);
  const DeviceMatrix scores =
      uploaded(shape.kv_heads, tokens, random_scores(numbers, BenchLayer::random(options, 11)));
  DeviceMatrix norms(shape.kv_heads, tokens);
  Rotation<Set> sets([&] {
    return Set{{layer.keys.view().middle_rows(0, tokens), kStream},
               Buffer<int64_t>(numbers),
               Buffer<float>(numbers)};
  });
  cuda::key_norms<Stored>(std::as_const(sets.next().keys).view(), nullptr, norms.data(), kStream);
  const DeviceWork work{sets.bytes_of_one() + traffic(scores, norms),
                        as_real(numbers * (tokens - 1) * shape.head_dim)};
  return measure_on_device(
      options, "nearest-better-keys", {work, Roofline::matrix_rate, std::nullopt}, [&](cuda::Stream stream) {
        Set& set = sets.next();
        cuda::nearest_better_keys<Stored>({std::as_const(set.keys).view(), norms.data()},
                                          {scores.data(), shape.kv_heads, tokens},
                                          {set.index.data(), set.cosine.data(), tokens}, stream);
      });
}

BenchResult bench_form_clusters(const BenchOptions& options) {
  MergingEntries entries(options);
  const DeviceWork work{
      traffic(entries.leaving.lists, entries.nearest, entries.cosines, entries.members, entries.offsets), 0};
  return measure_on_device(options, "form-clusters", {work, Roofline::time, kLatencyGoal},
                           [&](cuda::Stream stream) { entries.form_clusters(stream); });
}

// The candidates of order=merge-first: each one's parent has a higher score, and everything may merge.
struct Roots : Entries {
  explicit Roots(const BenchOptions& options)
      : Entries(options),
        parents(1, shape.kv_heads * tokens),
        cosines(shape.kv_heads, tokens),
        roots(1, shape.kv_heads * tokens),
        sums(shape.kv_heads, tokens),
        counts(uploaded(shape.kv_heads, budget)),
        kept_roots(shape.kv_heads, budget),
        status(1),
        own_workspace(cuda::merge_first_workspace(shape.kv_heads, tokens)) {
    const traces::Stream random = BenchLayer::random(options, 22);
    std::vector<float> numbers(shape.kv_heads * tokens);
    std::vector<int64_t> rows(numbers.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto place = static_cast<int64_t>(i) % tokens;
      numbers[i] = 1 / static_cast<float>(place + 1);
      // Every fourth candidate has no parent, so that enough roots are left.
      rows[i] = place % 4 == 0 ? -1 : static_cast<int64_t>(random.uniform(i) * as_real(place));
    }
    scores = uploaded(shape.kv_heads, tokens, numbers);
    parents.upload(0, 0, rows, kStream);
    cosines.clear(kStream);
    status.clear(kStream);
  }

  cuda::MergingCandidates candidates() const {
    return {0, tokens, tokens, {scores.data(), shape.kv_heads, tokens}};
  }
  void find(cuda::Stream stream) {
    cuda::merge_first(candidates(), {parents.data(), cosines.data(), tokens}, kAlways, counts.data(),
                      {roots.data(), sums.data()}, kept_roots.view(), shape.kv_heads, status.data(),
                      all_of(own_workspace), stream);
  }

  IndexLists parents;
  DeviceMatrix cosines, scores;
  IndexLists roots;
  DeviceMatrix sums;
  Buffer<int64_t> counts;
  Positions kept_roots;
  Buffer<int> status;
  Buffer<std::byte> own_workspace;
};

BenchResult bench_merge_first(const BenchOptions& options) {
  Roots roots(options);
  const DeviceWork work{
      traffic(roots.parents, roots.cosines, roots.scores, roots.roots, roots.sums, roots.kept_roots.lists),
      0};
  return measure_on_device(options, "merge-first", {work, Roofline::time, 4 * kLatencyGoal},
                           [&](cuda::Stream stream) { roots.find(stream); });
}

BenchResult bench_root_clusters(const BenchOptions& options) {
  Roots roots(options);
  roots.find(kStream);
  cuda::entries_left_out(roots.kept_roots.view(), roots.shape.kv_heads, roots.tokens, roots.leaving.view(),
                         all_of(roots.workspace), kStream);
  IndexLists members(roots.shape.kv_heads, roots.evicted());
  Buffer<int64_t> offsets(roots.shape.kv_heads * (roots.budget + 1));
  const DeviceWork work{traffic(roots.roots, roots.kept_roots.lists, roots.leaving.lists, members, offsets),
                        0};
  return measure_on_device(
      options, "root-clusters", {work, Roofline::time, 2 * kLatencyGoal}, [&](cuda::Stream stream) {
        cuda::root_clusters(roots.candidates(), roots.roots.data(), roots.kept_roots.view(),
                            roots.leaving.view(), roots.shape.kv_heads,
                            {members.data(), roots.evicted(), offsets.data(), roots.budget},
                            all_of(roots.own_workspace), stream);
      });
}

BenchResult bench_log_denominators(const BenchOptions& options) {
  Entries entries(options);
  Rotation<Predicted> sets(4 * as_real(entries.shape.query_heads * entries.tokens),
                           [&] { return Predicted(options, entries); });
  const Predicted& any = sets.next();
  return measure_on_device(
      options, "log-denominators",
      {{traffic(any.scores, any.counts, any.denominators), 0}, Roofline::time, kLatencyGoal},
      [&](cuda::Stream stream) {
        Predicted& set = sets.next();
        cuda::log_denominators(set.view(), entries.shape.query_heads, entries.shape.kv_heads,
                               set.counts.data(), set.denominators.data(), stream);
      });
}

BenchResult bench_cluster_weights(const BenchOptions& options) {
  struct Set {
    Predicted predicted;
    Weights weights;
  };
  MergingEntries entries(options);
  Rotation<Set> sets(4 * as_real(2 * entries.shape.query_heads * entries.tokens), [&] {
    return Set{Predicted(options, entries), Weights(entries)};
  });
  const Weights& any = sets.next().weights;
  const double bytes =
      traffic(sets.next().predicted.scores, entries.kept.lists, entries.members, entries.offsets, any.kept,
              any.members, any.divergences, any.shares, any.log_scores, any.votes, any.log_votes);
  return measure_on_device(options, "cluster-weights", {{bytes, 0}, Roofline::time, kLatencyGoal},
                           [&](cuda::Stream stream) {
                             Set& set = sets.next();
                             weigh(entries, set.predicted, set.weights, stream);
                           });
}

// One layer's prepared queries: singular values by Jacobi rotations, in double precision.
struct Queries {
  Queries(const BenchOptions& options, const LayerShape& own)
      : shape(own),
        queries(random_tensor(1, shape.query_heads, shape.head_dim, BenchLayer::random(options, 10)),
                kStream),
        prepared(shape.query_heads, shape.head_dim),
        inverse(shape.query_heads, shape.head_dim) {}

  cuda::MergeQueries view() { return {prepared.data(), inverse.data()}; }
  void prepare(cuda::Stream stream) {
    cuda::merge_queries<Stored>(kJoint, std::as_const(queries).view(), shape.kv_heads, scale(shape), view(),
                                stream);
  }

  LayerShape shape;
  StoredTensor<Stored> queries;
  DeviceMatrix prepared, inverse;
};

BenchResult bench_merge_queries(const BenchOptions& options) {
  Queries queries(options, options.shape.layer);
  const DeviceWork work{traffic(queries.queries, queries.prepared, queries.inverse), 0};
  return measure_on_device(options, "merge-queries", {work, Roofline::time, 2 * kLatencyGoal},
                           [&](cuda::Stream stream) { queries.prepare(stream); });
}

// The entries of a layer, and the cache into which they merge.
struct Rows {
  StoredTensor<Stored> entries, cache;
  double bytes() const { return traffic(entries, cache); }
};

Rotation<Rows> rotated_rows(const MergingEntries& entries, const Tensor& numbers, int64_t capacity) {
  return Rotation<Rows>([&] {
    return Rows{{numbers, kStream}, {entries.shape.kv_heads, capacity, entries.shape.head_dim}};
  });
}

// KeepKV's keys or means, from weights of every query head.
BenchResult bench_merged_rows(const BenchOptions& options, const std::string& name, bool keys) {
  MergingEntries entries(options);
  const Predicted predicted(options, entries);
  Weights weights(entries);
  weigh(entries, predicted, weights, kStream);
  Queries queries(options, entries.shape);
  queries.prepare(kStream);
  Rotation<Rows> sets =
      rotated_rows(entries, keys ? entries.layer.keys : entries.layer.values, entries.capacity);
  Buffer<std::byte> workspace(cuda::cluster_sums_workspace(entries.shape.kv_heads, weights.rows,
                                                           entries.evicted(), entries.shape.head_dim));
  const double products = 2 * as_real(entries.shape.query_heads * entries.tokens * entries.shape.head_dim);
  const DeviceWork work{sets.bytes_of_one() + traffic(weights.kept, weights.members, entries.members,
                                                      entries.kept.lists, entries.offsets),
                        products};
  return measure_on_device(
      options, name, {work, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        Rows& set = sets.next();
        const auto rows = std::as_const(set.entries).view();
        if (keys) {
          cuda::merged_keys<Stored>(kJoint, rows, queries.view(), entries.merged(), weights.view(),
                                    weights.numbers(), set.cache.view(), entries.status.data(),
                                    all_of(workspace), stream);
        } else {
          cuda::weighted_means<Stored>(rows, entries.merged(), weights.view(), weights.shares.data(),
                                       set.cache.view(), entries.status.data(), all_of(workspace), stream);
        }
      });
}

BenchResult bench_merged_keys(const BenchOptions& options) {
  return bench_merged_rows(options, "merged-keys", true);
}

BenchResult bench_weighted_means(const BenchOptions& options) {
  return bench_merged_rows(options, "weighted-means", false);
}

// D2O's or KVMerger's weights: one row for each KV head.
BenchResult bench_key_weights(const BenchOptions& options, const std::string& name, bool gaussian) {
  MergingEntries entries(options);
  const LayerShape& shape = entries.shape;
  DeviceMatrix kept(shape.kv_heads, entries.capacity), members(shape.kv_heads, entries.evicted());
  const cuda::ClusterWeights weights{1, kept.data(), members.data()};
  Rotation<Rows> sets = rotated_rows(entries, entries.layer.keys, entries.capacity);
  Buffer<std::byte> workspace(cuda::gaussian_weights_workspace(shape.kv_heads, entries.evicted()));
  const double bytes = bytes_of(sets.next().entries) +
                       traffic(kept, members, entries.members, entries.kept.lists, entries.offsets);
  return measure_on_device(
      options, name, {{bytes, 0}, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        const auto keys = std::as_const(sets.next().entries).view();
        if (gaussian) {
          cuda::gaussian_weights<Stored>(keys, entries.merged(), weights, all_of(workspace), stream);
        } else {
          cuda::similarity_weights<Stored>(keys, entries.merged(), weights, stream);
        }
      });
}

BenchResult bench_similarity_weights(const BenchOptions& options) {
  return bench_key_weights(options, "similarity-weights", false);
}

BenchResult bench_gaussian_weights(const BenchOptions& options) {
  return bench_key_weights(options, "gaussian-weights", true);
}

// CaM: every evicted value is spread over 32 kept ones.
BenchResult bench_spread_leaving(const BenchOptions& options) {
  MergingEntries entries(options);
  const LayerShape& shape = entries.shape;
  const DeviceMatrix attention =
      uploaded(shape.kv_heads, entries.tokens,
               std::vector<float>(shape.kv_heads * entries.tokens, 1 / static_cast<float>(entries.tokens)));
  Buffer<uint8_t> spread(shape.kv_heads * entries.evicted());
  Rotation<Rows> sets = rotated_rows(entries, entries.layer.values, entries.budget);
  sets.for_each([&](Rows& rows) {
    const cuda::PositionLists kept = entries.kept.view();
    cuda::compact<Stored>(std::as_const(rows.entries).view(), kept.positions, kept.stride, kept.count,
                          rows.cache.view(), kStream);
  });
  Buffer<std::byte> workspace(
      cuda::spread_leaving_workspace(shape.kv_heads, entries.evicted(), entries.budget, shape.head_dim));
  const double bytes = sets.bytes_of_one() + bytes_of(sets.next().cache) +
                       traffic(attention, entries.leaving.lists, entries.kept.lists, spread);
  return measure_on_device(
      options, "spread-leaving", {{bytes, 0}, Roofline::copy_bandwidth, kCopyGoal}, [&](cuda::Stream stream) {
        Rows& set = sets.next();
        cuda::spread_leaving<Stored>({}, attention.data(), entries.leaving.view(), entries.kept.view(),
                                     std::as_const(set.entries).view(), set.cache.view(), spread.data(),
                                     entries.status.data(), all_of(workspace), stream);
      });
}

constexpr BenchOperation kMergingOperations[] = {
    {"entries-left-out", "the positions of the 80 % evicted", bench_entries_left_out},
    {"key-norms", "lengths of all keys", bench_key_norms},
    {"nearest-keys", "K6: the kept key of largest cosine for every evicted one, on tensor cores",
     bench_nearest_keys},
    {"nearest-keys-mma", "K6 by mma.sync", bench_mma_nearest_keys},
    {"nearest-keys-portable", "K6 without tensor cores", bench_portable_nearest_keys},
    {"nearest-better-keys", "K6: among those of higher score, for each of up to 8,192 keys",
     bench_nearest_better_keys},
    {"form-clusters", "clusters of the evicted entries, the largest with thousands", bench_form_clusters},
    {"merge-first", "roots, their scores and those kept, for order=merge-first", bench_merge_first},
    {"root-clusters", "the clusters of these roots", bench_root_clusters},
    {"merge-queries", "pseudo-inverses of the groups' queries", bench_merge_queries},
    {"log-denominators", "sums of all predicted scores", bench_log_denominators},
    {"cluster-weights", "K6': KeepKV's weights and votes", bench_cluster_weights},
    {"merged-keys", "K6': KeepKV's keys, by every query head's weights", bench_merged_keys},
    {"weighted-means", "K6': KeepKV's values, by every query head's weights", bench_weighted_means},
    {"similarity-weights", "D2O's weights", bench_similarity_weights},
    {"gaussian-weights", "KVMerger's weights", bench_gaussian_weights},
    {"spread-leaving", "CaM: values of evicted entries, each over 32 kept ones", bench_spread_leaving},
};

}  // namespace

std::span<const BenchOperation> merging_operations() { return kMergingOperations; }

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
