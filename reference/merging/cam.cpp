#include "cam.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/draw.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

namespace kvbound::reference {
namespace {

// Whether an entry's value is spread over the entries that follow it in the cache.
bool is_drawn(const Cam& options, int64_t kv_head, int64_t position, double attention_weight,
              VectorView following) {
  return !following.empty() &&
         spreads(spread_probability(attention_weight, following), options.seed, kv_head, position);
}

void add_share(VectorView value, size_t sharing, std::span<double> to) {
  for (size_t c = 0; c < to.size(); ++c) to[c] += value[c] / static_cast<double>(sharing);
}

}  // namespace

double spread_probability(double attention_weight, VectorView following) {
  if (following.empty()) throw ShapeMismatch("no entries follow");
  double sum = 0;
  for (const double weight : following) sum += weight;
  if (!std::isfinite(sum) || !std::isfinite(attention_weight)) {
    throw NonFinite("attention weights of " + std::to_string(attention_weight) + " and, in sum, " +
                    std::to_string(sum));
  }
  if (attention_weight == 0) return 0;
  const double mean = sum / static_cast<double>(following.size());
  return mean == 0 ? 1 : std::min(1.0, attention_weight / mean);
}

bool spreads(double probability, int64_t seed, int64_t kv_head, int64_t position) {
  const uint64_t bits = draw(seed, kv_head, position);
  return std::ldexp(static_cast<double>(bits >> 11), -53) < probability;
}

std::vector<int64_t> following_entries(std::span<const int64_t> positions, int64_t position, int64_t most) {
  std::vector<int64_t> entries;
  for (size_t j = 0; j < positions.size(); ++j) {
    if (positions[j] > position) entries.push_back(j);
  }
  const auto nearer = [&](int64_t a, int64_t b) { return positions[a] < positions[b]; };
  const auto sharing = std::min(std::ssize(entries), static_cast<std::ptrdiff_t>(most));
  std::ranges::partial_sort(entries, entries.begin() + sharing, nearer);
  entries.resize(sharing);
  return entries;
}

std::vector<double> mean_attention(Matrix logits) {
  for (int64_t h = 0; h < logits.rows(); ++h) {
    const std::span<double> row = logits.row(h);
    softmax(row, std::ranges::max(row), row);
  }
  const Matrix mean = group_mean(logits, logits.rows());
  return {mean.row(0).begin(), mean.row(0).end()};
}

HeadMerge spread_leaving(const Cam& options, int64_t kv_head, VectorView attention, MatrixView values,
                         HeadCache& cache) {
  HeadMerge record;
  size_t next = 0;  // the cache's first entry after `position`
  for (int64_t position = 0; position < values.rows; ++position) {
    if (next < cache.positions.size() && cache.positions[next] == position) {
      ++next;
      continue;
    }
    const size_t sharing = std::min(static_cast<size_t>(options.neighbours), cache.positions.size() - next);
    std::vector<double> following;
    for (size_t j = next; j < next + sharing; ++j) {
      following.push_back(attention[cache.positions[j]]);
    }
    if (!is_drawn(options, kv_head, position, attention[position], following)) continue;
    ++record.counts.merged;
    if (record.clusters.empty() || record.clusters.back().into != cache.positions[next]) {
      record.clusters.push_back({cache.positions[next], {}, {}});
    }
    record.clusters.back().from.push_back(position);
    for (size_t j = next; j < next + sharing; ++j) {
      add_share(values.row(position), sharing, cache.values.row(j));
    }
  }
  return record;
}

HeadMerge spread_entry(const Cam& options, int64_t kv_head, VectorView attention, int64_t leaving,
                       std::optional<bool> drawn, HeadCache& cache, std::vector<int64_t>& changed) {
  HeadMerge record;
  const int64_t position = cache.positions[leaving];
  const std::vector<int64_t> entries = following_entries(cache.positions, position, options.neighbours);
  std::vector<double> following;
  for (const int64_t entry : entries) following.push_back(attention[entry]);
  const double own = attention[leaving];
  if (entries.empty() || !drawn.value_or(is_drawn(options, kv_head, position, own, following))) return record;
  const std::vector<double> value(cache.values.row(leaving).begin(), cache.values.row(leaving).end());
  for (const int64_t entry : entries) {
    add_share(value, entries.size(), cache.values.row(entry));
    record.positions.push_back(cache.positions[entry]);
    record.votes.push_back(1);
    record.keys.append_row(cache.keys.row(entry));
    record.values.append_row(cache.values.row(entry));
    changed.push_back(entry);
  }
  record.counts.merged = 1;
  record.clusters.push_back({record.positions.front(), {position}, {}});
  return record;
}

}  // namespace kvbound::reference
