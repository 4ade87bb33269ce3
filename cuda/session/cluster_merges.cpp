#include "cluster_merges.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "append.hpp"
#include "compaction.hpp"

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
      new_norms(shape.kv_heads, 1),
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
std::vector<HeadMerge> ClusterMerges<T>::compress(const SelectedLayer<T>& selected, LayerCache<T>& cache,
                                                  Queue& queue) {
  const DeviceLayer<T>& layer = selected.layer;
  const int64_t tokens = layer.prompt_tokens();
  PromptTargets targets(selected.kept, tokens, cache.capacity());
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
  if (decodes_) begin_decoding(selected.known, merging.log_scores(), merged, tokens, cache, queue);
  queue.require_numbers("a merged entry");
  std::optional<Matrix> recorded;
  if (rules_.prediction) recorded = scores.download("log_scores", queue.stream());
  return prompt_records(selected, targets, recorded, merging.zip_outcomes(queue.stream()), cache, queue);
}

template <Storage T>
std::vector<HeadMerge> ClusterMerges<T>::prompt_records(const SelectedLayer<T>& selected,
                                                        const PromptTargets& targets,
                                                        const std::optional<Matrix>& scores,
                                                        const std::vector<uint8_t>& zip, LayerCache<T>& cache,
                                                        Queue& queue) const {
  const int64_t tokens = selected.layer.prompt_tokens();
  std::vector<int64_t> counts;
  for (const std::vector<int64_t>& positions : selected.kept) counts.push_back(std::ssize(positions));
  std::vector<Matrix> keys = cache.stored_keys().download(counts, queue.stream()),
                      values = cache.stored_values().download(counts, queue.stream());
  const std::vector<std::vector<std::vector<int64_t>>> members = targets.download(queue.stream());
  const Matrix votes = rules_.votes ? cache.votes().download("votes", queue.stream()) : Matrix();
  std::vector<HeadMerge> records(counts.size());
  for (int64_t g = 0; g < shape_.kv_heads; ++g) {
    HeadMerge& record = records[g];
    const std::vector<int64_t>& kept = selected.kept[g];
    record.positions = kept;
    record.keys = std::move(keys[g]);
    record.values = std::move(values[g]);
    record.counts.leaving = tokens - counts[g];
    record.target_of.assign(tokens, kNotMerged);
    for (int64_t i = 0; i < counts[g]; ++i) {
      record.votes.push_back(rules_.votes ? votes(g, i) : 1);
      const std::vector<int64_t>& from = members[g][i];
      record.target_of[kept[i]] = kept[i];
      for (const int64_t position : from) record.target_of[position] = kept[i];
      if (from.empty()) continue;
      count(zip.empty() ? uint8_t{0} : zip[g * cache.capacity() + i], record.counts);
      record.counts.merged += std::ssize(from);
      std::vector<int64_t> cluster{kept[i]};
      cluster.insert(cluster.end(), from.begin(), from.end());
      record.clusters.push_back({kept[i], from, columns_of(scores, shape_, g, cluster)});
    }
    if (selected.roots) record.target_of = selected.roots->target_of(g, tokens, queue.stream());
  }
  return records;
}

// ln s^ of all entries of a prompt or a full cache, [query_heads, tokens]; empty for methods that predict no scores.
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
      predicted_scores(*rules_.prediction, averaged, shape_.query_heads, shape_.kv_heads, all.data(), tokens,
                       scores.data(), queue.stream());
      synchronise(queue.stream());  // `all` is released
    });
    return scores;
  }
  ScoredQuery<T> last(shape_, tokens);
  queue.run("attention", [&] {
    last.attend(layer.last_queries(), {layer.keys, layer.values, all.data()}, scale_, queue);
    synchronise(queue.stream());
  });
  return std::move(last.logits);
}

template <Storage T>
void ClusterMerges<T>::begin_decoding(LayerScores<T>* known, const DeviceMatrix& merged_scores,
                                      const MergedEntries& merged, int64_t tokens, LayerCache<T>& cache,
                                      Queue& queue) {
  decoding_.emplace(merge_, shape_, cache.capacity());
  Decoding& own = *decoding_;
  own.tokens = tokens;
  const PositionLists kept = merged.kept;
  queue.run("compaction", [&] {
    key_norms<T>(cache.keys(), kept.count, own.key_norms.data(), queue.stream());
    if (!averages()) return;
    if (known) {
      keep_averages(known->averages(*rules_.prediction), shape_.kv_heads, kept, own.averages, queue.stream());
      replace_scores(*rules_.prediction, merged_scores.data(), merged, shape_.query_heads, shape_.kv_heads,
                     tokens, own.averages.view(), queue.stream());
    } else {
      own.averages.begin(queue.stream());
    }
  });
}

template <Storage T>
void ClusterMerges<T>::enter(DeviceTensor<const T> keys, LayerCache<T>& cache, Queue& queue) {
  Decoding& own = *decoding_;
  key_norms<T>(keys, nullptr, own.new_norms.data(), queue.stream());
  append_numbers(own.new_norms.data(), shape_.kv_heads, cache.slots(), own.key_norms.data(), queue.stream());
}

template <Storage T>
void ClusterMerges<T>::observe(const ScoredQuery<T>& query, LayerCache<T>& cache, int64_t tokens,
                               Queue& queue) {
  Decoding& own = *decoding_;
  own.tokens = tokens;
  own.log_scores = averages() ? own.predicted.data() : query.logits.data();
  if (!averages()) return;
  observe_scores(*rules_.prediction, query.logits.data(), query.log_sum_exp.data(), cache.slots(),
                 shape_.query_heads, own.averages.view(), queue.stream());
}

// Predicts the scores of all entries, and keeps those of the evicted one and of its target.
template <Storage T>
void ClusterMerges<T>::predict(LayerCache<T>& cache, Queue& queue) {
  Decoding& own = *decoding_;
  if (!rules_.prediction) return;
  if (averages()) {
    predicted_scores(*rules_.prediction, own.averages.view(), shape_.query_heads, shape_.kv_heads,
                     cache.slots().entries, own.tokens, own.predicted.data(), queue.stream());
  }
  const NumberRows<const float> scores{own.log_scores, shape_.query_heads, cache.capacity()};
  compact_numbers(scores, shape_.kv_heads, own.kept.data(), 1, own.count.data(), rows_of(own.kept_scores),
                  queue.stream());
  compact_numbers(scores, shape_.kv_heads, own.members.data(), 1, own.count.data(),
                  rows_of(own.member_scores), queue.stream());
}

template <Storage T>
void ClusterMerges<T>::merge(DeviceTensor<const T> queries, LayerCache<T>& cache, Queue& queue) {
  Decoding& own = *decoding_;
  const CacheSlots slots = cache.slots();
  queue.run("merge_targets", [&] {
    nearest_key<T>({cache.keys(), own.key_norms.data()}, slots, own.nearest(), queue.stream());
    join_nearest(slots, own.nearest(), *rules_.target, own.kept_list(), own.merged().clusters,
                 own.merged_into.data(), queue.stream());
    predict(cache, queue);
  });
  own.merging.merge({cache.keys(),
                     cache.values(),
                     {own.log_scores, slots.votes, slots.capacity},
                     slots.entries,
                     queries,
                     scale_,
                     own.merged()},
                    cache, queue);
  queue.run("merging", [&] { read_changes(cache, queue); });
}

// Brings the state of merged entries up to date, and copies what is recorded of them.
template <Storage T>
void ClusterMerges<T>::read_changes(LayerCache<T>& cache, Queue& queue) {
  Decoding& own = *decoding_;
  const PositionLists changed = own.kept_list();
  const Stream stream = queue.stream();
  compact<T>(cache.keys(), changed.positions, 1, changed.count, own.changed_keys.view(), stream);
  compact<T>(cache.values(), changed.positions, 1, changed.count, own.changed_values.view(), stream);
  key_norms<T>(std::as_const(own.changed_keys).view(), changed.count, own.new_norms.data(), stream);
  scatter_numbers(rows_of(std::as_const(own.new_norms)), shape_.kv_heads, changed.positions, 1, changed.count,
                  rows_of(own.key_norms), stream);
  if (averages()) {
    replace_scores(*rules_.prediction, own.merging.log_scores().data(), own.merged(), shape_.query_heads,
                   shape_.kv_heads, own.tokens, own.averages.view(), stream);
  }
  if (!rules_.votes) return;
  compact_numbers(rows_of(cache.votes()), shape_.kv_heads, changed.positions, 1, changed.count,
                  rows_of(own.changed_votes), stream);
}

template <Storage T>
StepMerges ClusterMerges<T>::records(const std::vector<int64_t>& evicted, Queue& queue) {
  Decoding& own = *decoding_;
  const Stream stream = queue.stream();
  const int64_t heads = shape_.kv_heads;
  StepMerges result{std::vector<int64_t>(heads), std::vector<HeadMerge>(heads)};
  own.merged_into.download(result.merged_into, stream);
  std::vector<int64_t> counts(heads);
  for (int64_t g = 0; g < heads; ++g) counts[g] = result.merged_into[g] >= 0 ? 1 : 0;
  std::vector<Matrix> keys = own.changed_keys.download(counts, stream),
                      values = own.changed_values.download(counts, stream);
  std::vector<float> kept_scores(shape_.query_heads), member_scores(shape_.query_heads), votes(heads, 1);
  if (rules_.prediction) own.kept_scores.read(kept_scores, stream);
  if (rules_.prediction) own.member_scores.read(member_scores, stream);
  if (rules_.votes) own.changed_votes.read(votes, stream);
  const std::vector<uint8_t> zip = own.merging.zip_outcomes(stream);
  for (int64_t g = 0; g < heads; ++g) {
    HeadMerge& record = result.merges[g];
    if (evicted[g] >= 0) record.counts.leaving = 1;
    if (counts[g] == 0) continue;
    Matrix scores(shape_.group_size(), rules_.prediction ? 2 : 0);
    for (int64_t h = 0; rules_.prediction && h < shape_.group_size(); ++h) {
      scores(h, 0) = kept_scores[g * shape_.group_size() + h];
      scores(h, 1) = member_scores[g * shape_.group_size() + h];
    }
    record.clusters.push_back({result.merged_into[g], {evicted[g]}, std::move(scores)});
    count(zip.empty() ? uint8_t{0} : zip[g], record.counts);
    record.counts.merged = 1;
    record.positions = {result.merged_into[g]};
    record.votes = {votes[g]};
    record.keys = std::move(keys[g]);
    record.values = std::move(values[g]);
  }
  return result;
}

template class ClusterMerges<float>;
template class ClusterMerges<Float16>;
template class ClusterMerges<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
