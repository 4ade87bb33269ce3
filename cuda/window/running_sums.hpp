// Sums of exponentials to base 2, whose exponents a thread has as products of a part's queries with tokens.
#pragma once

#include <limits>

#include <kvbound/cuda/primitives/exponential.hpp>

#include "query_parts.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace window_tiles {

/// The largest logit of a query over some tokens, and the sum of 2^(z - largest).
struct RunningSum {
  /// The largest one of no tokens: finite, so that differences are.
  static constexpr float kLowest = std::numeric_limits<float>::lowest();
  float largest = kLowest, sum = 0;

  __device__ float most() const { return largest == kLowest ? kNothing : largest; }
};

/// A thread's sums over its tokens, for each of its queries of a part.
template <int kTiles>
struct RunningSums {
  static constexpr int kOwn = 2 * kTiles;
  float largest[kOwn], sums[kOwn];

  __device__ RunningSums() { clear(); }

  /// Those of no tokens.
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      largest[i] = RunningSum::kLowest;
      sums[i] = 0;
    }
  }

  /// Takes in the products as logits. Sums are rescaled if any lane has a larger logit than before: by 1 in
  /// the others.
  __device__ void add(PartProducts<kTiles>& logits) {
    float most[kOwn];
    bool grown = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      most[i] = fmaxf(largest[i], fmaxf(logits.of(0, i), logits.of(1, i)));
      grown = grown || most[i] > largest[i];
    }
    if (__any_sync(kAllLanes, grown)) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        sums[i] *= power_of_two(largest[i] - most[i]);
        largest[i] = most[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      sums[i] += power_of_two(logits.of(0, i) - largest[i]) + power_of_two(logits.of(1, i) - largest[i]);
    }
  }

  /// Joins the eight lanes that share their queries.
  __device__ void join_lanes() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float most = largest[i];
      for (int distance = 16; distance >= 4; distance /= 2)
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
      float sum = sums[i] * power_of_two(largest[i] - most);
      for (int distance = 16; distance >= 4; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
      largest[i] = most;
      sums[i] = sum;
    }
  }

  __device__ RunningSum of(int i) const { return {largest[i], sums[i]}; }

  /// Behind join_lanes, that of the thread's query lane() / 4, if it has as many: of the eight lanes that
  /// share their queries each takes one, so that the warp's lie side by side.
  __device__ RunningSum of_lane() const {
    float most = largest[0], sum = sums[0];
#pragma unroll
    for (int i = 1; i < kOwn; ++i) {
      most = lane() / 4 == i ? largest[i] : most;
      sum = lane() / 4 == i ? sums[i] : sum;
    }
    return {most, sum};
  }
};

/// The sums over a part's queries of 2^exponent: of token l / 4, and in odd lanes of token l / 4 + 8.
template <int kTiles>
__device__ float sum_of_weights(PartProducts<kTiles>& exponents) {
  float sums[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float pair =
          power_of_two(exponents.of(half, 2 * tile)) + power_of_two(exponents.of(half, 2 * tile + 1));
      sums[half] = tile == 0 ? pair : sums[half] + pair;
    }
  }
  return sum_over_queries(sums);
}

}  // namespace window_tiles
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
