// Attention weights for CaM's draws, and whether rounding can change a draw.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/merging/cam.hpp>

namespace kvbound::parity {

inline constexpr int64_t kNoLimit = int64_t{1} << 60;

/// Whether rounding cannot change the draw: the probability of single precision lies on the same side of the
/// drawn number. Its sum has `following.size()` additions; three roundings follow: of the count, of the
/// mean, and of the quotient.
inline bool is_certain(double weight, VectorView following, int64_t seed, int64_t kv_head, int64_t position) {
  const double probability = reference::spread_probability(weight, following);
  const double off = reference::sum_rounding(std::ssize(following) + 3, reference::single_precision());
  return reference::spreads(probability * (1 - off), seed, kv_head, position) ==
         reference::spreads(probability * (1 + off), seed, kv_head, position);
}

/// How the attention weights of a cache are distributed.
enum class Weights {
  random,
  zeros,  ///< of every third entry and of half of the kept ones, so that probabilities are 0/0 and x/0, too
  none,   ///< all 0
  small,  ///< of the entries that leave: nearly all are dropped
};
inline constexpr Weights kWeights[] = {Weights::random, Weights::zeros, Weights::none, Weights::small};

inline std::string_view name(Weights kind) {
  constexpr std::string_view kNames[] = {"random", "zero", "no", "small"};
  return kNames[static_cast<size_t>(kind)];
}

inline double weight_of(Weights kind, double random, int64_t position, bool stays, bool later) {
  const double weight = std::exp(random) / 64;
  if (kind == Weights::none) return 0;
  if (kind == Weights::zeros && (position % 3 == 0 || (stays && later))) return 0;
  return static_cast<float>(kind == Weights::small && !stays ? weight / 1000 : weight);
}

}  // namespace kvbound::parity
