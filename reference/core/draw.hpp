// Pseudo-random draws by integer arithmetic alone, so that they have the same bits on
// every platform and device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvbound {
namespace detail {

// SplitMix64's mixing function, a bijection.
constexpr uint64_t mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

}  // namespace detail

/// A draw of 64 bits: a hash of a seed and of the numbers that it is drawn for, in this order.
///
///     d_0 = mix(seed + c),   d_i = mix(d_(i-1) + number_i + c)   modulo 2^64,   c = 0x9e3779b97f4a7c15
///
/// returns  the last d; numbers that differ in the last one alone have different draws
template <class... Numbers>
constexpr uint64_t draw(int64_t seed, Numbers... numbers) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  uint64_t bits = detail::mixed(static_cast<uint64_t>(seed) + kStep);
  ((bits = detail::mixed(bits + static_cast<uint64_t>(numbers) + kStep)), ...);
  return bits;
}

/// The seed of the draws of one KV head's positions: position j has draw(seed, layer, kv_head, j).
struct DrawSeed {
  int64_t seed = 0;
  int64_t layer = 0;    ///< the layer's number in its trace or model
  int64_t kv_head = 0;  ///< its number in the layer

  constexpr uint64_t draw_of(int64_t position) const { return draw(seed, layer, kv_head, position); }
};

/// The indices of the smallest draws; ties: the smaller index.
///
/// count    0..number of draws
/// returns  [count], ascending
inline std::vector<int64_t> smallest_draws(std::span<const uint64_t> draws, int64_t count) {
  std::vector<std::pair<uint64_t, int64_t>> order;
  for (const uint64_t one : draws) order.emplace_back(one, static_cast<int64_t>(order.size()));
  std::ranges::nth_element(order, order.begin() + count);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(order[static_cast<size_t>(i)].second);
  std::ranges::sort(indices);
  return indices;
}

/// The `count` of the positions first..last - 1 that have the smallest draws.
///
/// count    0..last - first
/// returns  [count], ascending; the positions of a smaller count are among those of a larger one
inline std::vector<int64_t> drawn_positions(const DrawSeed& seed, int64_t first, int64_t last,
                                            int64_t count) {
  std::vector<uint64_t> draws;
  for (int64_t j = first; j < last; ++j) draws.push_back(seed.draw_of(j));
  std::vector<int64_t> positions = smallest_draws(draws, count);
  for (int64_t& position : positions) position += first;
  return positions;
}

}  // namespace kvbound
