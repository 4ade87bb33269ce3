// Random instances.
#pragma once

#include <cstdint>
#include <span>

#include <rapidcheck.h>

#include "regime.hpp"

namespace kvbound::proofs {

/// Of large instances: the most tokens, and the most query heads of a KV head.
inline constexpr int64_t kLongTokens = 64;
inline constexpr int64_t kWideGroup = 16;

/// The largest instance that a generator draws.
struct Sizes {
  int64_t tokens = 32;
  int64_t head_dim = 6;
  int64_t model_dim = 8;
  int64_t query_heads = 1;
  int64_t queries = 1;
  bool merging = false;
  /// A fifth of the larger half of the cases are large: they have more than `tokens` tokens, up to this
  /// number, or more than `query_heads` query heads, and hardly anything else. 0: none have.
  int64_t long_tokens = 0;
  int64_t wide_group = 0;

  std::span<const Regime> regimes() const {
    return merging ? std::span<const Regime>(kMergingRegimes) : std::span<const Regime>(kEvictionRegimes);
  }
};

/// Instances whose numbers lie on dyadic grids, so that they print in full and small sums of them are exact.
///
/// Attention is level (all weights equal: masses of 1/2 are exact), flat, peaked, power-law, tied, with a
/// sink, huge (within +-10^4) or plain; values are plain, tied, tiny at the sink, or opposed (kept and
/// evicted values of opposite sign, where bounds are tight); the kept set is arbitrary or the best; stage one
/// is the whole kept set, its best, its worst or an arbitrary part.
///
/// Instances for merging have, in addition, clusters whose scores are shifted until m is near 0, or are
/// equal or nearly equal; later queries that give nearly the same scores; nearly parallel queries; votes of
/// 1, a few, or up to 10^6.
///
/// Instances shrink by the steps of simpler.hpp.
rc::Gen<Instance> instances(Sizes largest);

/// The sizes that theorems on merging draw by default.
inline constexpr Sizes kMergingSizes{.tokens = 7,
                                     .head_dim = 3,
                                     .model_dim = 3,
                                     .query_heads = 2,
                                     .queries = 2,
                                     .merging = true,
                                     .long_tokens = kLongTokens,
                                     .wide_group = kWideGroup};

}  // namespace kvbound::proofs
