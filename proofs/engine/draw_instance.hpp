// Random instances.
#pragma once

#include <cstdint>
#include <span>

#include <rapidcheck.h>

#include "regime.hpp"

namespace kvbound::proofs {

/// The largest instance that a generator draws.
struct Sizes {
  int64_t tokens = 32;
  int64_t head_dim = 6;
  int64_t model_dim = 8;
  int64_t query_heads = 1;
  int64_t queries = 1;
  bool merging = false;

  std::span<const Regime> regimes() const {
    return merging ? std::span<const Regime>(kMergingRegimes) : std::span<const Regime>(kEvictionRegimes);
  }
};

/// Instances on dyadic grids, so that they print in full and small sums of them are exact.
///
/// Attention is level (all weights equal: masses of 1/2 are exact), flat, peaked, power-law, tied, with a sink,
/// huge (within +-10^4) or plain; values are plain, tied, tiny at the sink, or opposed (what is kept pulls
/// against what is evicted, where bounds are tight); the kept set is arbitrary or the best; stage one is all of
/// it, its best, its worst or a part.
///
/// Those that merge have, besides, clusters whose scores are shifted until m is next to 0, agree or nearly agree; queries
/// that come later and give nearly the same scores; queries next to parallel; votes of 1, a few, or up to 10^6.
///
/// They shrink to what is simpler (simpler.hpp).
rc::Gen<Instance> instances(Sizes largest);

/// What theorems of merging draw by default.
inline constexpr Sizes kMergingSizes{
    .tokens = 7, .head_dim = 3, .model_dim = 3, .query_heads = 2, .queries = 2, .merging = true};

}  // namespace kvbound::proofs
