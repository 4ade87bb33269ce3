// Caches that evict an entry, by one stage or by two: which one by the definition, and the device's choice.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include <kvbound/cuda/session/head_eviction.hpp>

#include "cache_slots.hpp"
#include "parity/scores.hpp"
#include "parity/support.hpp"

namespace kvbound::parity {

struct EvictCase {
  std::vector<std::vector<int64_t>> positions;  // per KV head
  std::vector<std::vector<float>> scores;       // likewise; empty: no scores
  std::vector<int64_t> budgets;
  int64_t sinks = 0, recent = 0;
  bool fills_recent = false;
};

inline int64_t newest_of(const std::vector<int64_t>& positions) {
  return positions.empty() ? 0 : std::ranges::max(positions);
}

/// The slot that a head evicts by the definition; nullopt: none.
inline std::optional<size_t> evicted_slot(const EvictCase& c, size_t g) {
  const std::vector<int64_t>& positions = c.positions[g];
  if (std::ssize(positions) <= c.budgets[g]) return std::nullopt;
  const int64_t newest = newest_of(positions), recent = c.fills_recent ? c.budgets[g] - c.sinks : c.recent;
  std::optional<size_t> worst;
  for (size_t slot = 0; slot < positions.size(); ++slot) {
    if (positions[slot] < c.sinks || positions[slot] > newest - recent) continue;
    const auto score = [&](size_t of) { return c.scores.empty() ? 0.0f : c.scores[g][of]; };
    if (!worst || score(slot) < score(*worst) ||
        (score(slot) == score(*worst) && positions[slot] > positions[*worst])) {
      worst = slot;
    }
  }
  return worst;
}

/// A case in device memory.
class UploadedEvictCase {
 public:
  explicit UploadedEvictCase(const EvictCase& c)
      : c_(c),
        capacity_(capacity_of(c)),
        slots_(c.positions, std::vector<int64_t>(c.positions.size(), 0), capacity_),
        budgets_(cuda::upload(c.budgets)),
        running_(heads() * capacity_) {
    std::vector<float> scores(heads() * capacity_, -std::numeric_limits<float>::infinity());
    for (size_t g = 0; g < c.scores.size(); ++g) {
      std::ranges::copy(c.scores[g], scores.begin() + static_cast<std::ptrdiff_t>(g) * capacity_);
    }
    scores_ = cuda::upload(scores);
    std::vector<int64_t> newest;
    for (const auto& head : c.positions) newest.push_back(newest_of(head));
    newest_ = cuda::upload(newest);
  }

  /// evicted, free  [kv_heads], device memory
  void evict(int64_t* evicted, int64_t* free, int* status) {
    std::optional<cuda::ScoreUpdate> update;
    if (!c_.scores.empty()) {
      update = {{.contributions = scores_.data()},
                StepUpdate::replace,
                GroupReduction::sum,
                {.running = running_.data()}};
    }
    cuda::CacheSlots slots = slots_.view();
    slots.free = free;
    cuda::evict({c_.sinks, c_.recent, c_.fills_recent, budgets_.data()}, slots, update, std::nullopt, heads(),
                newest_.data(), evicted, status, nullptr);
  }

 private:
  static int64_t capacity_of(const EvictCase& c) {
    int64_t capacity = 1;
    for (const auto& head : c.positions) capacity = std::max(capacity, std::ssize(head) + 1);
    return capacity;
  }
  int64_t heads() const { return std::ssize(c_.positions); }

  EvictCase c_;
  int64_t capacity_;
  Slots slots_;
  cuda::Buffer<int64_t> budgets_, newest_;
  cuda::Buffer<float> scores_, running_;
};

struct CriticalCase {
  std::vector<std::vector<int64_t>> positions;  // per KV head
  std::vector<int64_t> budgets;
  int64_t group_size = 1;
  int64_t sinks = 0, recent = 0;
  double epsilon = 0;
  GqaProduct gqa = GqaProduct::mean_of_products;
  bool adaptive = false;
  ScoreKind scores = ScoreKind::normal;
  ScoreKind norms = ScoreKind::normal;
};

/// Running scores, norms and weights of a case, exact in fp32.
struct CriticalInput {
  const CriticalCase& c;
  int64_t capacity = 1, newest = 0;
  std::vector<float> running, norms, weights, reduced;

  explicit CriticalInput(const CriticalCase& given) : c(given) {
    for (const auto& head : c.positions) {
      capacity = std::max(capacity, std::ssize(head) + 1);
      newest = std::max(newest, *std::ranges::max_element(head));
    }
    const auto heads = std::ssize(c.positions) * c.group_size;
    for (int64_t h = 0; h < heads; ++h) {
      const auto seed = static_cast<uint64_t>(3 * h);
      append(running, scores_of(c.scores, seed, capacity));
      append(norms, scores_of(c.norms, seed + 1, capacity));
      std::vector<float> row = scores_of(ScoreKind::softmax, seed + 2, capacity);
      const float sum =
          std::accumulate(row.begin(), row.begin() + std::ssize(c.positions[h / c.group_size]), 0.0f);
      for (float& weight : row) weight /= sum;
      append(weights, row);
    }
    reduced.assign(c.positions.size() * capacity, std::numeric_limits<float>::quiet_NaN());
    for (size_t g = 0; g < c.positions.size(); ++g) {
      for (size_t slot = 0; slot < c.positions[g].size(); ++slot) {
        float sum = 0;
        for (int64_t i = 0; i < c.group_size; ++i) sum += at(running, g, i, slot);
        reduced[g * capacity + slot] = sum / static_cast<float>(c.group_size);
      }
    }
  }

  float at(const std::vector<float>& numbers, size_t g, int64_t i, size_t slot) const {
    return numbers[(g * c.group_size + i) * capacity + slot];
  }
  bool is_always_kept(size_t g, size_t slot) const {
    const int64_t position = c.positions[g][slot];
    return position < c.sinks || position > newest - c.recent;
  }
  double stage_two(size_t g, size_t slot) const {
    double products = 0, scores = 0, norm = 0;
    for (int64_t i = 0; i < c.group_size; ++i) {
      products += (at(running, g, i, slot) + c.epsilon) * at(norms, g, i, slot);
      scores += at(running, g, i, slot);
      norm += at(norms, g, i, slot);
    }
    const auto heads = static_cast<double>(c.group_size);
    return c.gqa == GqaProduct::mean_of_products ? products / heads
                                                 : (scores / heads + c.epsilon) * (norm / heads);
  }

 private:
  static void append(std::vector<float>& all, const std::vector<float>& row) {
    all.insert(all.end(), row.begin(), row.end());
  }
};

inline int64_t stage_one_of(int64_t kept) { return kept * 3 / 5; }

inline std::optional<int64_t> adaptive_count(const CriticalInput& input, size_t g,
                                             const std::vector<size_t>& ranked, int64_t kept) {
  int64_t most = 0;
  for (int64_t i = 0; i < input.c.group_size; ++i) {
    double mass = 0;
    for (size_t slot = 0; slot < input.c.positions[g].size(); ++slot) {
      if (input.is_always_kept(g, slot)) mass += input.at(input.weights, g, i, slot);
    }
    int64_t count = 0;
    while (mass <= 0.5 && count < kept) mass += input.at(input.weights, g, i, ranked[count++]);
    const double before = count > 0 ? mass - input.at(input.weights, g, i, ranked[count - 1]) : 0;
    if (std::abs(mass - 0.5) < 1e-5 || std::abs(before - 0.5) < 1e-5) return std::nullopt;
    most = std::max(most, count);
  }
  return most;
}

/// The position that a head evicts by the definition; nullopt where fp32 may decide otherwise.
inline std::optional<int64_t> evicted_position(const CriticalInput& input, size_t g) {
  const CriticalCase& c = input.c;
  const std::vector<int64_t>& positions = c.positions[g];
  const int64_t leaving = std::ssize(positions) - c.budgets[g];
  std::vector<size_t> candidates;
  for (size_t slot = 0; slot < positions.size(); ++slot) {
    if (!input.is_always_kept(g, slot)) candidates.push_back(slot);
  }
  if (leaving <= 0 || candidates.empty()) return -1;
  std::ranges::sort(candidates, [&](size_t a, size_t b) {
    const float one = input.reduced[g * input.capacity + a], other = input.reduced[g * input.capacity + b];
    return one != other ? one > other : positions[a] < positions[b];
  });
  const int64_t kept = std::max<int64_t>(std::ssize(candidates) - leaving, 0);
  const std::optional<int64_t> count =
      c.adaptive ? adaptive_count(input, g, candidates, kept) : stage_one_of(kept);
  if (!count) return std::nullopt;
  std::optional<size_t> worst;
  for (size_t rank = *count; rank < candidates.size(); ++rank) {
    const size_t slot = candidates[rank];
    const double score = input.stage_two(g, slot), least = worst ? input.stage_two(g, *worst) : 0;
    if (!worst || score < least || (score == least && positions[slot] > positions[*worst])) worst = slot;
  }
  return positions[*worst];
}

/// A case in device memory.
class UploadedCriticalCase {
 public:
  explicit UploadedCriticalCase(const CriticalInput& input)
      : c_(input.c),
        slots_(c_.positions, std::vector<int64_t>(c_.positions.size(), 0), input.capacity),
        running_(cuda::upload(input.running)),
        norms_(cuda::upload(input.norms)),
        weights_(cuda::upload(input.weights)),
        reduced_(cuda::upload(input.reduced)),
        budgets_(cuda::upload(c_.budgets)),
        newest_(cuda::upload(std::vector<int64_t>(c_.positions.size(), input.newest))) {
    std::vector<int64_t> counts;
    for (int64_t kept = 0; kept <= input.capacity; ++kept) counts.push_back(stage_one_of(kept));
    stage_one_counts_ = cuda::upload(counts);
  }

  /// evicted, free  [kv_heads], device memory
  void evict(int64_t* evicted, int64_t* free, int* status) {
    cuda::CacheSlots slots = slots_.view();
    slots.free = free;
    cuda::evict_critical({c_.sinks, c_.recent, false, budgets_.data()}, slots, reduced_.data(),
                         {running_.data(), norms_.data(), c_.adaptive ? nullptr : stage_one_counts_.data(),
                          weights_.data(), c_.epsilon, c_.gqa},
                         std::nullopt, slots.kv_heads * c_.group_size, newest_.data(), evicted, status,
                         nullptr);
  }

 private:
  CriticalCase c_;
  Slots slots_;
  cuda::Buffer<float> running_, norms_, weights_, reduced_;
  cuda::Buffer<int64_t> budgets_, newest_, stage_one_counts_;
};

}  // namespace kvbound::parity
