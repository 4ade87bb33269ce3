#include "cluster_merges.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "compaction.hpp"
#include "joined_rows.hpp"
#include "step_changes.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

void count(uint8_t zip, MergeCounts& counts) {
  ++counts.clusters;
  counts.singular += (zip & kSingular) != 0;
  counts.negative += (zip & kNegative) != 0;
  counts.far += (zip & kFar) != 0;
}

// ln s^ of a cluster's entries, [group_size, entries]; no columns without scores.
Matrix columns_of(const std::optional<Matrix>& scores, const LayerShape& shape, int64_t g,
                  const std::vector<int64_t>& entries) {
  Matrix columns(shape.group_size(), scores ? std::ssize(entries) : 0);
  for (int64_t h = 0; scores && h < columns.rows(); ++h) {
    for (size_t j = 0; j < entries.size(); ++j)
      columns.row(h)[j] = (*scores)(g * shape.group_size() + h, entries[j]);
  }
  return columns;
}

// Adds the cluster of a kept entry, if it has members.
void add_cluster(int64_t kept, const std::vector<int64_t>& from, uint8_t zip,
                 const std::optional<Matrix>& scores, const LayerShape& shape, int64_t g, HeadMerge& record) {
  record.target_of[kept] = kept;
  for (const int64_t position : from) record.target_of[position] = kept;
  if (from.empty()) return;
  count(zip, record.counts);
  record.counts.merged += std::ssize(from);
  std::vector<int64_t> cluster{kept};
  cluster.insert(cluster.end(), from.begin(), from.end());
  record.clusters.push_back({kept, from, columns_of(scores, shape, g, cluster)});
}

NumberRows<const float> rows_of(const DeviceMatrix& matrix) {
  return {matrix.data(), matrix.rows(), matrix.cols()};
}
NumberRows<float> rows_of(DeviceMatrix& matrix) { return {matrix.data(), matrix.rows(), matrix.cols()}; }

// Copies the kept entries' averages of the prompt to those of the cache.
void keep_averages(AveragedScores& all, int64_t kv_heads, const PositionLists& kept, AveragedScores& averages,
                   Stream stream) {
  const std::pair<DeviceMatrix*, DeviceMatrix*> parts[] = {{&all.exponents, &averages.exponents},
                                                           {&all.mantissas, &averages.mantissas},
                                                           {&all.weights, &averages.weights}};
  for (const auto& [from, to] : parts) {
    compact_numbers(rows_of(std::as_const(*from)), kv_heads, kept.positions, kept.stride, kept.count,
                    rows_of(*to), stream);
  }
}

}  // namespace

template <Storage T>
ClusterMerges<T>::Decoding::Decoding(const Merge& merge, const LayerShape& shape, int64_t capacity)
    : key_norms(shape.kv_heads, capacity),
      nearest_cosine(shape.kv_heads, 1),
      nearest_index(shape.kv_heads),
      kept(shape.kv_heads),
      count(shape.kv_heads),
      members(shape.kv_heads),
      offsets(2 * shape.kv_heads),
      merged_into(shape.kv_heads),
      kept_scores(shape.query_heads, 1),
      member_scores(shape.query_heads, 1),
      changed_keys(shape.kv_heads, 1, shape.head_dim),
      changed_values(shape.kv_heads, 1, shape.head_dim),
      changed_votes(shape.kv_heads, 1),
      merging(merge, shape, 1, 1) {
  if (!kvbound::rules_of(merge).averages()) return;
  averages = AveragedScores(shape, capacity);
  predicted = DeviceMatrix(shape.query_heads, capacity);
}

template <Storage T>
void ClusterMerges<T>::compress(const SelectedLayer<T>& selected, LayerCache<T>& cache, Queue& queue,
                                std::vector<HeadMerge>& records) {
  const DeviceLayer<T>& layer = selected.layer;
  const int64_t tokens = layer.prompt_tokens();
  PromptTargets targets(selected.counts, tokens, cache.capacity());
  if (selected.roots) {
    selected.roots->form_targets(cache.filled(), queue, targets);
  } else {
    form_targets(layer, *rules_.target, cache, queue, targets);
  }
  const MergedEntries merged{cache.filled(), targets.clusters(), nullptr};
  const DeviceMatrix scores = log_scores_of(layer, selected.known, queue);
  const Buffer<int64_t> all(std::span<const int64_t>(std::vector<int64_t>(shape_.kv_heads, tokens)),
                            queue.stream());
  ClusterMerging<T> merging(merge_, shape_, cache.capacity(), targets.stride());
  merging.merge({layer.keys,
                 layer.values,
                 {scores.data(), nullptr, tokens},
                 all.data(),
                 layer.last_queries(),
                 scale_,
                 merged},
                cache, queue);
  if (decodes_) begin_decoding(selected, merging.log_scores(), merged, cache, queue);
  Readback& reads = queue.read_back();
  queue.require_numbers(reads, "predicted score");
  record_prompt(selected, targets, scores, merging, cache, reads, records);
  reads.fetch(queue.pool());
}

template <Storage T>
void ClusterMerges<T>::record_prompt(const SelectedLayer<T>& selected, const PromptTargets& targets,
                                     const DeviceMatrix& scores, const ClusterMerging<T>& merging,
                                     const LayerCache<T>& cache, Readback& reads,
                                     std::vector<HeadMerge>& records) const {
  const auto roots = selected.roots ? selected.roots->read(reads) : nullptr;
  reads.then([rules = rules_, shape = shape_, capacity = cache.capacity(), counts = selected.counts,
              tokens = selected.layer.prompt_tokens(), &kept = selected.kept, &records, roots,
              members_of = targets.read(reads), log_scores = reads.of(scores),
              zip_outcomes = reads.of(merging.zip_outcomes()), all_votes = reads.of(cache.votes()),
              all_keys = reads.of(cache.stored_keys()),
              all_values = reads.of(cache.stored_values())](const Arrived& arrived) {
    std::optional<Matrix> predicted;
    if (rules.prediction) predicted = arrived.matrix(log_scores, "log_scores");
    const std::span<const uint8_t> zip = arrived[zip_outcomes];
    const std::span<const float> votes = arrived[all_votes.numbers];
    const std::vector<std::vector<std::vector<int64_t>>> members = members_of(arrived);
    std::vector<Matrix> keys = arrived.slices(all_keys, counts), values = arrived.slices(all_values, counts);
    records.resize(counts.size());
    for (int64_t g = 0; g < shape.kv_heads; ++g) {
      HeadMerge& record = records[g];
      record.positions = kept[g];
      record.keys = std::move(keys[g]);
      record.values = std::move(values[g]);
      record.counts.leaving = tokens - counts[g];
      record.target_of.assign(tokens, kNotMerged);
      for (int64_t i = 0; i < counts[g]; ++i) {
        record.votes.push_back(rules.votes ? votes[g * capacity + i] : 1);
        add_cluster(kept[g][i], members[g][i], zip.empty() ? uint8_t{0} : zip[g * capacity + i], predicted,
                    shape, g, record);
      }
    }
    if (!roots) return;
    std::vector<std::vector<int64_t>> targets_of = roots(arrived);
    for (size_t g = 0; g < records.size(); ++g) records[g].target_of = std::move(targets_of[g]);
  });
}

// What predictions after so many tokens are divided by, [kv_heads].
template <Storage T>
Buffer<float> ClusterMerges<T>::log_seen(int64_t tokens, Queue& queue) const {
  const std::vector<float> shares(shape_.kv_heads, log_seen_share(*rules_.prediction, tokens));
  return Buffer<float>(std::span(shares), queue.stream());
}

// ln s^ of all entries of a prompt or a full cache, [query_heads, tokens]; empty for
// methods that predict no scores.
template <Storage T>
DeviceMatrix ClusterMerges<T>::log_scores_of(const DeviceLayer<T>& layer, LayerScores<T>* known,
                                             Queue& queue) const {
  if (!rules_.prediction) return {};
  const int64_t tokens = layer.prompt_tokens();
  const Buffer<int64_t> all(std::span<const int64_t>(std::vector<int64_t>(shape_.kv_heads, tokens)),
                            queue.stream());
  if (known && averages()) {
    const ScoreAverages averaged = known->averages(*rules_.prediction).view();
    DeviceMatrix scores(shape_.query_heads, tokens);
    queue.run("score_ema", [&] {
      predicted_scores(*rules_.prediction, averaged, shape_.query_heads, shape_.kv_heads, all.data(),
                       log_seen(tokens, queue).data(), scores.data(), queue.stream());
    });
    return scores;
  }
  ScoredQuery<T> last(shape_, tokens);
  DeviceMatrix outputs(shape_.query_heads, shape_.head_dim);
  queue.run("attention", [&] {
    last.attend(layer.last_queries(), {layer.keys, layer.values, all.data()}, scale_, {}, outputs.data(),
                queue);
  });
  return std::move(last.logits);
}

template <Storage T>
void ClusterMerges<T>::begin_decoding(const SelectedLayer<T>& selected, const DeviceMatrix& merged_scores,
                                      const MergedEntries& merged, LayerCache<T>& cache, Queue& queue) {
  decoding_.emplace(merge_, shape_, cache.capacity());
  Decoding& own = *decoding_;
  const PositionLists kept = merged.kept;
  queue.run("compaction", [&] {
    cuda::key_norms<T>(cache.keys(), kept.count, own.key_norms.data(), queue.stream());
    if (!averages()) return;
    if (selected.known) {
      keep_averages(selected.known->averages(*rules_.prediction), shape_.kv_heads, kept, own.averages,
                    queue.stream());
      replace_scores(*rules_.prediction, merged_scores.data(), merged, shape_.query_heads, shape_.kv_heads,
                     log_seen(selected.layer.prompt_tokens(), queue).data(), own.averages.view(),
                     queue.stream());
    } else {
      own.averages.begin(queue.stream());
    }
  });
}

template <Storage T>
std::unique_ptr<Merges<T>> ClusterMerges<T>::joined(std::span<Merges<T>* const> parts, int64_t capacity,
                                                    Queue& queue) const {
  auto all = std::make_unique<ClusterMerges>(*this, cuda::joined(shape_, std::ssize(parts)));
  Decoding& own = all->decoding_.emplace(merge_, all->shape_, capacity);
  std::vector<Decoding*> of_parts;
  std::vector<AveragedScores*> averages_of;
  for (Merges<T>* const part : parts) {
    of_parts.push_back(&*static_cast<ClusterMerges*>(part)->decoding_);
    averages_of.push_back(&of_parts.back()->averages);
  }
  join(of_parts, &Decoding::key_norms, own, queue.stream());
  if (!averages()) return all;
  for (const auto numbers :
       {&AveragedScores::exponents, &AveragedScores::mantissas, &AveragedScores::weights})
    join(averages_of, numbers, own.averages, queue.stream());
  return all;
}

template <Storage T>
void ClusterMerges<T>::observe(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
                               Queue& queue) {
  if (!averages()) return;
  observe_scores(*rules_.prediction, query.logits.data(), query.log_sum_exp.data(), cache.slots(),
                 shape_.query_heads, decoding_->averages.view(), step.log_seen(), decoding_->predicted.data(),
                 queue.stream());
}

// The predicted scores of all entries, [query_heads, capacity]. Null for methods that predict none.
template <Storage T>
const float* ClusterMerges<T>::predicted(const ScoredQuery<T>& query) const {
  if (!rules_.prediction) return nullptr;
  return averages() ? decoding_->predicted.data() : query.logits.data();
}

template <Storage T>
void ClusterMerges<T>::merge(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
                             Queue& queue) {
  Decoding& own = *decoding_;
  const CacheSlots slots = cache.slots();
  const float* const scores = predicted(query);
  queue.run("merge_targets", [&] {
    join_nearest<T>({cache.keys(), own.key_norms.data()}, slots, own.nearest(), *rules_.target,
                    own.kept_list(), own.merged().clusters, own.merged_into.data(), queue.stream());
  });
  own.merging.merge({cache.keys(),
                     cache.values(),
                     {scores, slots.votes, slots.capacity},
                     slots.entries,
                     step.queries(),
                     scale_,
                     own.merged()},
                    cache, queue);
  queue.run("merging", [&] { keep_changes(scores, step, cache, queue); });
}

// Brings the state of merged entries up to date, and copies what is recorded of them.
//
// log_scores  predicted
template <Storage T>
void ClusterMerges<T>::keep_changes(const float* log_scores, const StepInput<T>& step, LayerCache<T>& cache,
                                    Queue& queue) {
  Decoding& own = *decoding_;
  const CacheSlots slots = cache.slots();
  cuda::keep_changes<T>(cache.keys(), cache.values(), slots, own.merged(), shape_.query_heads,
                        {own.key_norms.data(), own.changed_keys.view(), own.changed_values.view(),
                         slots.votes ? own.changed_votes.data() : nullptr, log_scores, own.kept_scores.data(),
                         own.member_scores.data()},
                        queue.stream());
  if (!averages()) return;
  replace_scores(*rules_.prediction, own.merging.log_scores().data(), own.merged(), shape_.query_heads,
                 shape_.kv_heads, step.log_seen(), own.averages.view(), queue.stream());
}

template <Storage T>
void ClusterMerges<T>::record(Readback& reads, StepRecord& record) const {
  const Decoding& own = *decoding_;
  reads.then([rules = rules_, shape = shape_, &record, merged_into = reads.of(own.merged_into),
              all_keys = reads.of(own.changed_keys), all_values = reads.of(own.changed_values),
              kept_scores = reads.of(own.kept_scores), member_scores = reads.of(own.member_scores),
              all_votes = reads.of(own.changed_votes),
              zip_outcomes = reads.of(own.merging.zip_outcomes())](const Arrived& arrived) {
    record.merged_into.assign(arrived[merged_into].begin(), arrived[merged_into].end());
    if (record.rebuilt) return;
    std::vector<int64_t> counts;
    for (const int64_t into : record.merged_into) counts.push_back(into >= 0 ? 1 : 0);
    std::vector<Matrix> keys = arrived.slices(all_keys, counts), values = arrived.slices(all_values, counts);
    const std::span<const uint8_t> zip = arrived[zip_outcomes];
    record.merges.resize(counts.size());
    for (int64_t g = 0; g < shape.kv_heads; ++g) {
      HeadMerge& merge = record.merges[g];
      if (record.evicted[g] >= 0) merge.counts.leaving = 1;
      if (counts[g] == 0) continue;
      Matrix scores(shape.group_size(), rules.prediction ? 2 : 0);
      for (int64_t h = 0; rules.prediction && h < shape.group_size(); ++h) {
        scores(h, 0) = arrived[kept_scores.numbers][g * shape.group_size() + h];
        scores(h, 1) = arrived[member_scores.numbers][g * shape.group_size() + h];
      }
      merge.clusters.push_back({record.merged_into[g], {record.evicted[g]}, std::move(scores)});
      count(zip.empty() ? uint8_t{0} : zip[g], merge.counts);
      merge.counts.merged = 1;
      merge.positions = {record.merged_into[g]};
      merge.votes = {rules.votes ? arrived[all_votes.numbers][g] : 1};
      merge.keys = std::move(keys[g]);
      merge.values = std::move(values[g]);
    }
  });
}

template class ClusterMerges<float>;
template class ClusterMerges<Float16>;
template class ClusterMerges<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
