#include "head_merging.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention.hpp"
#include "core/error.hpp"
#include "merge_baselines.hpp"
#include "nearest_key.hpp"
#include "snap_kv.hpp"

namespace kvbound::reference {
namespace {

// [group_size, head_dim]
MatrixView last_queries(const LayerView& layer, int64_t kv_head) {
  if (layer.window_queries() == 0) throw ShapeMismatch("no prompt query is recorded to merge for");
  const int64_t group_size = layer.shape.group_size();
  return layer.queries.row_of_slices(layer.window_queries() - 1)
      .middle_rows(kv_head * group_size, group_size);
}

// One query attention over the group: the mean of its query heads' softmaxes.
std::vector<double> mean_attention(Matrix logits) {
  for (int64_t h = 0; h < logits.rows(); ++h) {
    const std::span<double> row = logits.row(h);
    softmax(row, *std::ranges::max_element(row), row);
  }
  const Matrix mean = group_mean(logits, logits.rows());
  return {mean.row(0).begin(), mean.row(0).end()};
}

GroupMembers members_of(MatrixView keys, MatrixView values, VectorView votes,
                        std::span<const int64_t> entries) {
  GroupMembers members;
  for (const int64_t entry : entries) {
    members.keys.append_row(keys.row(entry));
    members.values.append_row(values.row(entry));
    members.votes.push_back(votes.empty() ? 1 : votes[static_cast<size_t>(entry)]);
  }
  return members;
}

// None of a matrix without columns: of methods that predict nothing.
Matrix columns_of(MatrixView matrix, std::span<const int64_t> columns) {
  if (matrix.cols == 0) return {};
  Matrix result(matrix.rows, static_cast<int64_t>(columns.size()));
  for (int64_t h = 0; h < matrix.rows; ++h) {
    for (size_t j = 0; j < columns.size(); ++j) result.row(h)[j] = matrix(h, columns[j]);
  }
  return result;
}

// By weights that the keys alone say.
MergedEntry without_votes(VectorView weights, const GroupMembers& members) {
  return {weighted_mean(weights, members.keys), weighted_mean(weights, members.values), 1, {}, {}};
}

void count(const ZipScale& zip, MergeCounts& counts) {
  ++counts.groups;
  counts.singular += zip.singular;
  counts.negative += zip.negative();
  counts.far += zip.far();
}

void add_value(VectorView value, double share, std::span<double> to) {
  for (size_t c = 0; c < to.size(); ++c) to[c] += share * value[c];
}

// The entries that share what CaM spreads: those of the next larger positions, nearest first.
std::vector<int64_t> following_entries(std::span<const int64_t> positions, int64_t position, int64_t most) {
  std::vector<int64_t> entries;
  for (size_t j = 0; j < positions.size(); ++j) {
    if (positions[j] > position) entries.push_back(static_cast<int64_t>(j));
  }
  const auto first = [&](int64_t a, int64_t b) {
    return positions[static_cast<size_t>(a)] < positions[static_cast<size_t>(b)];
  };
  const auto shared = std::min<size_t>(entries.size(), static_cast<size_t>(most));
  std::ranges::partial_sort(entries, entries.begin() + static_cast<std::ptrdiff_t>(shared), first);
  entries.resize(shared);
  return entries;
}

}  // namespace

std::optional<PredictedScores> prediction_of(const Merge& merge) {
  if (const auto* keep_kv = std::get_if<KeepKv>(&merge)) return keep_kv->prediction;
  if (const auto* convex = std::get_if<ConvexMerge>(&merge)) return convex->prediction;
  return std::nullopt;
}

std::optional<SimilarTarget> target_of(const Merge& merge) {
  return std::visit(
      []<class One>(const One& one) -> std::optional<SimilarTarget> {
        if constexpr (std::is_base_of_v<SimilarTarget, One>) {
          return one;
        } else {
          return std::nullopt;
        }
      },
      merge);
}

HeadMerging::HeadMerging(const Merge& merge, const LayerView& layer, int64_t kv_head)
    : merge_(merge),
      prediction_(prediction_of(merge)),
      kv_head_(kv_head),
      group_size_(layer.shape.group_size()),
      scale_(layer.scale) {}

HeadMerge HeadMerging::compress(const LayerView& layer, MergeTargets targets, const ScoreEma* known,
                                HeadCache& cache) {
  const MatrixView keys = layer.keys.slice(kv_head_), values = layer.values.slice(kv_head_);
  tokens_ = layer.prompt_tokens();
  HeadMerge record;
  record.positions = std::move(targets.kept);
  record.counts.leaving = tokens_ - static_cast<int64_t>(record.positions.size());
  if (prediction_ && prediction_->predict == Prediction::ema) {
    ema_ = known ? known->of(record.positions) : ScoreEma(*prediction_, group_size_);
    while (ema_.entries() < static_cast<int64_t>(record.positions.size())) ema_.append();
  }
  if (const auto* cam = std::get_if<Cam>(&merge_)) spread_prompt(*cam, layer, cache, record);
  if (!targets.groups.empty()) {
    const Matrix scores = prompt_scores(layer, known);
    const std::optional<MergeQueries> queries =
        merge_queries(last_queries(layer, kv_head_), log_denominators(scores, {}));
    for (MergeGroup& group : targets.groups) {
      std::vector<int64_t> entries{group.into};
      entries.insert(entries.end(), group.from.begin(), group.from.end());
      GroupMembers members = members_of(keys, values, {}, entries);
      members.log_scores = group.log_scores = columns_of(scores, entries);
      const MergedEntry entry = merged(queries, std::move(members));
      put(std::ranges::lower_bound(record.positions, group.into) - record.positions.begin(), entry, cache);
      count(entry.zip, record.counts);
      record.counts.merged += static_cast<int64_t>(group.from.size());
      record.groups.push_back(std::move(group));
    }
  }
  if (target_of(merge_)) key_norms_ = key_norms(cache.keys);
  record.votes = cache.votes.empty() ? std::vector<double>(record.positions.size(), 1.0) : cache.votes;
  record.keys = cache.keys;
  record.values = cache.values;
  return record;
}

void HeadMerging::enter(const HeadCache& cache) {
  if (prediction_ && prediction_->predict == Prediction::ema) ema_.append();
  if (!target_of(merge_)) return;
  key_norms_.push_back(key_norms(cache.keys.view().middle_rows(cache.entries() - 1, 1)).front());
}

void HeadMerging::observe(MatrixView queries, const HeadCache& cache, int64_t tokens) {
  tokens_ = tokens;
  if (!prediction_ && !std::holds_alternative<Cam>(merge_)) return;
  logits_ = attention_logits(queries, cache.keys, scale_);
  if (prediction_ && prediction_->predict == Prediction::ema) ema_.observe_logits(logits_, cache.votes);
}

HeadMerging::Departure HeadMerging::merge(int64_t leaving, MatrixView queries, HeadCache& cache,
                                          std::optional<int64_t> into) {
  if (const auto* cam = std::get_if<Cam>(&merge_)) return spread(*cam, leaving, cache, into);
  Departure departure;
  departure.record.counts.leaving = 1;
  const NearestKey nearest = target(leaving, cache, into);
  if (nearest.index < 0) return departure;
  const std::vector<int64_t> entries{nearest.index, leaving};
  GroupMembers members = members_of(cache.keys, cache.values, cache.votes, entries);
  members.log_scores = step_scores(entries);
  std::vector<double> denominators;
  if (needs_denominators()) denominators = log_denominators(step_scores({}), cache.votes);
  const auto position_of = [&](int64_t entry) { return cache.positions[static_cast<size_t>(entry)]; };
  HeadMerge& record = departure.record;
  record.groups.push_back({position_of(nearest.index), {position_of(leaving)}, members.log_scores});
  const MergedEntry entry = merged(merge_queries(queries, std::move(denominators)), std::move(members));
  put(nearest.index, entry, cache);
  count(entry.zip, record.counts);
  record.counts.merged = 1;
  record.positions = {position_of(nearest.index)};
  record.votes = {entry.votes};
  record.keys.append_row(entry.key);
  record.values.append_row(entry.value);
  departure.into = position_of(nearest.index);
  departure.changed = {nearest.index};
  return departure;
}

// With whom a leaving entry merges; index -1: with nobody.
NearestKey HeadMerging::target(int64_t leaving, const HeadCache& cache, std::optional<int64_t> into) const {
  if (into) {
    const auto found = std::ranges::find(cache.positions, *into);
    return {found == cache.positions.end() ? -1 : found - cache.positions.begin(), 0};
  }
  const NearestKey nearest = nearest_key(leaving, cache.keys, key_norms_, cache.positions);
  return is_similar(nearest.cosine, *target_of(merge_)) ? nearest : NearestKey{};
}

void HeadMerging::leave(int64_t entry) {
  if (prediction_ && prediction_->predict == Prediction::ema) ema_.remove(entry);
  if (key_norms_.empty()) return;
  key_norms_[static_cast<size_t>(entry)] = key_norms_.back();
  key_norms_.pop_back();
}

// ln s^ of all entries of a prompt or a full cache, [group_size, entries]; no columns for methods that predict nothing.
Matrix HeadMerging::prompt_scores(const LayerView& layer, const ScoreEma* known) const {
  if (!prediction_) return Matrix(group_size_, 0);
  if (known && prediction_->predict == Prediction::ema) return known->log_predicted(tokens_);
  return attention_logits(last_queries(layer, kv_head_), layer.keys.slice(kv_head_), scale_);
}

// ln s^ of these entries of the cache, or of all if none is named.
Matrix HeadMerging::step_scores(std::span<const int64_t> entries) const {
  if (!prediction_) return Matrix(group_size_, 0);
  if (prediction_->predict == Prediction::current) {
    return entries.empty() ? logits_ : columns_of(logits_, entries);
  }
  if (entries.empty()) return ema_.log_predicted(tokens_);
  Matrix scores(group_size_, static_cast<int64_t>(entries.size()));
  for (int64_t h = 0; h < group_size_; ++h) {
    for (size_t j = 0; j < entries.size(); ++j) scores.row(h)[j] = ema_.log_predicted(h, entries[j], tokens_);
  }
  return scores;
}

// Only several heads that go each by its own scores weigh their values against each other.
bool HeadMerging::needs_denominators() const {
  const auto is_joint = []<class One>(const One& one) {
    if constexpr (requires { one.gqa; }) {
      return one.gqa == MergeGqa::joint;
    } else {
      return false;
    }
  };
  return group_size_ > 1 && std::visit(is_joint, merge_);
}

std::vector<double> HeadMerging::log_denominators(MatrixView log_scores, VectorView votes) const {
  std::vector<double> denominators;
  if (!needs_denominators()) return denominators;
  const Matrix voted = votes.empty() ? Matrix() : voted_logits(log_scores, votes);
  for (int64_t h = 0; h < group_size_; ++h) {
    denominators.push_back(log_sum_exp(votes.empty() ? log_scores.row(h) : voted.view().row(h)));
  }
  return denominators;
}

std::optional<MergeQueries> HeadMerging::merge_queries(MatrixView queries,
                                                       std::vector<double> log_denominators) const {
  if (const auto* keep_kv = std::get_if<KeepKv>(&merge_)) {
    return MergeQueries({keep_kv->key, keep_kv->gqa, keep_kv->rank}, queries, scale_,
                        std::move(log_denominators));
  }
  if (const auto* convex = std::get_if<ConvexMerge>(&merge_)) {
    return MergeQueries({MergedKey::convex, convex->gqa, 0}, queries, scale_, std::move(log_denominators));
  }
  return std::nullopt;
}

MergedEntry HeadMerging::merged(const std::optional<MergeQueries>& queries, GroupMembers members) const {
  if (std::holds_alternative<D2o>(merge_)) return without_votes(similarity_weights(members.keys), members);
  if (std::holds_alternative<KvMerger>(merge_)) return without_votes(gaussian_weights(members.keys), members);
  MergedEntry entry = merge_group(*queries, members);
  if (std::holds_alternative<ConvexMerge>(merge_)) entry.votes = 1;
  return entry;
}

void HeadMerging::put(int64_t entry, const MergedEntry& merged, HeadCache& cache) {
  const auto index = static_cast<size_t>(entry);
  std::ranges::copy(merged.key, cache.keys.row(entry).begin());
  std::ranges::copy(merged.value, cache.values.row(entry).begin());
  if (std::holds_alternative<KeepKv>(merge_)) {
    if (cache.votes.empty()) cache.votes.assign(cache.positions.size(), 1.0);
    cache.votes[index] = merged.votes;
  }
  if (!key_norms_.empty()) key_norms_[index] = key_norms(cache.keys.view().middle_rows(entry, 1)).front();
  if (ema_.entries() > 0) ema_.replace(entry, merged.log_scores, tokens_);
}

void HeadMerging::spread_prompt(const Cam& cam, const LayerView& layer, HeadCache& cache,
                                HeadMerge& record) const {
  const MatrixView values = layer.values.slice(kv_head_);
  const std::vector<double> attention =
      mean_attention(attention_logits(last_queries(layer, kv_head_), layer.keys.slice(kv_head_), scale_));
  size_t next = 0;  // the first entry of the cache behind the position
  for (int64_t position = 0; position < layer.prompt_tokens(); ++position) {
    if (next < cache.positions.size() && cache.positions[next] == position) {
      ++next;
      continue;
    }
    const size_t shared = std::min(static_cast<size_t>(cam.neighbours), cache.positions.size() - next);
    std::vector<double> following;
    for (size_t j = next; j < next + shared; ++j) {
      following.push_back(attention[static_cast<size_t>(cache.positions[j])]);
    }
    if (shared == 0 || !spreads(spread_probability(attention[static_cast<size_t>(position)], following),
                                cam.seed, kv_head_, position)) {
      continue;
    }
    ++record.counts.merged;
    if (record.groups.empty() || record.groups.back().into != cache.positions[next]) {
      record.groups.push_back({cache.positions[next], {}, {}});
    }
    record.groups.back().from.push_back(position);
    for (size_t j = next; j < next + shared; ++j) {
      add_value(values.row(position), 1 / static_cast<double>(shared),
                cache.values.row(static_cast<int64_t>(j)));
    }
  }
}

// Whether CaM's draw says that an entry of the cache is spread over those that follow.
bool HeadMerging::draws(const Cam& cam, int64_t leaving, std::span<const int64_t> following,
                        int64_t position) const {
  const std::vector<double> attention = mean_attention(logits_);
  std::vector<double> weights;
  for (const int64_t entry : following) weights.push_back(attention[static_cast<size_t>(entry)]);
  return !weights.empty() && spreads(spread_probability(attention[static_cast<size_t>(leaving)], weights),
                                     cam.seed, kv_head_, position);
}

HeadMerging::Departure HeadMerging::spread(const Cam& cam, int64_t leaving, HeadCache& cache,
                                           std::optional<int64_t> into) const {
  Departure departure;
  HeadMerge& record = departure.record;
  record.counts.leaving = 1;
  const int64_t position = cache.positions[static_cast<size_t>(leaving)];
  const std::vector<int64_t> entries = following_entries(cache.positions, position, cam.neighbours);
  const bool drawn = into ? *into >= 0 : draws(cam, leaving, entries, position);
  if (entries.empty() || !drawn) return departure;
  const std::vector<double> value(cache.values.row(leaving).begin(), cache.values.row(leaving).end());
  for (const int64_t entry : entries) {
    add_value(value, 1 / static_cast<double>(entries.size()), cache.values.row(entry));
    record.positions.push_back(cache.positions[static_cast<size_t>(entry)]);
    record.votes.push_back(1);
    record.keys.append_row(cache.keys.row(entry));
    record.values.append_row(cache.values.row(entry));
  }
  record.counts.merged = 1;
  record.groups.push_back({record.positions.front(), {position}, {}});
  departure.into = record.positions.front();
  departure.changed = entries;
  return departure;
}

}  // namespace kvbound::reference
