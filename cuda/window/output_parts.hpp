// Outputs of queries times G as operands of tensor cores, which multiply 16-bit numbers:
// as sums of such numbers.
#pragma once

#include <kvbound/cuda/primitives/number_parts.hpp>
#include <kvbound/cuda/primitives/row_fragments.hpp>

#include "query_parts.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace window_tiles {

/// The error of a product of a value and such an output, as a share of the sum of its terms' absolute values,
/// without the additions outside of tensor cores (reference/bounds/obcache_errors.md, "Lengths").
///
/// chain  sums of the largest parts' products that tensor cores form one behind the other
template <Storage16 T>
double output_product_sums(int64_t chain) {
  const double of_chain = static_cast<double>(chain) * kChainedTensorSums;
  return of_chain * (1 + of_chain) * (1 + 0x3p-4) + NumberParts<T>::kRounding;
}

/// A warp's outputs times G in parts, as B operands.
template <Storage16 T, int kSteps, int kTiles>
struct OutputFragments {
  using Parts = NumberParts<T>;
  RowFragments<kSteps, kTiles> parts[Parts::kCount];
  float scales[2 *
               kTiles];  ///< what products with the outputs of the thread's queries have to be multiplied by

  /// rows   of the head's queries, of which there are `count`, with `stride` numbers from one to the next
  /// first  query of the warp; of those behind the last one all numbers are 0
  __device__ void load(const float* rows, int64_t stride, int64_t count, int first, int columns) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int query = first + tile * kFragmentRows + lane() / 4;
      const float* row = rows + query * stride;
      const int own = query < count ? columns : 0;
      const float scale = Parts::kScales ? Parts::scale_of(largest(row, own)) : 1;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        const float2 pair = load_pair(row, i * 8 + lane() % 4 * 2, own);
        const Parts both(pair.x * scale, pair.y * scale);
#pragma unroll
        for (int part = 0; part < Parts::kCount; ++part)
          parts[part].words[tile][i / 2][i % 2] = both.pairs[part];
      }
      // The lanes of query 2 (l % 4) + i have its scale.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scales[2 * tile + i] = 1 / __shfl_sync(kAllLanes, scale, (lane() % 4 * 2 + i) * 4);
      }
    }
  }

 private:
  // The largest absolute value of a row, of which four lanes have some numbers each.
  __device__ static float largest(const float* row, int columns) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const float2 pair = load_pair(row, i * 8 + lane() % 4 * 2, columns);
      most = fmaxf(most, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    return fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
  }
};

/// Forms the products of 16 tokens: of keys with queries, and of values with outputs times G before they
/// are multiplied by `scales`.
template <Storage16 T, int kSteps, int kTiles>
__device__ __forceinline__ void form_both(const uint4* keys, const RowFragments<kSteps, kTiles>& queries,
                                          PartProducts<kTiles>& logits, const uint4* values,
                                          const OutputFragments<T, kSteps, kTiles>& outputs,
                                          PartProducts<kTiles>& products) {
  using Parts = NumberParts<T>;
  const int row = lane() % 16 * PaddedRows<kSteps>::kStride + lane() / 16;
  float smaller[kTiles][4] = {};  // of all parts but the first
#pragma unroll
  for (int first = 0; first < kSteps; first += kRowChain) {
    float of_keys[kTiles][4] = {}, of_values[kTiles][4] = {};
#pragma unroll
    for (int step = first; step < first + kRowChain && step < kSteps; ++step) {
      uint32_t key[4], value[4];
      ldmatrix_x4(key, keys + row + 2 * step);
      ldmatrix_x4(value, values + row + 2 * step);
      // The last part first: none of these waits for one that was just begun.
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        mma_m16n8k16<T>(smaller[tile], value, outputs.parts[Parts::kCount - 1].words[tile][step]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        mma_m16n8k16<T>(of_keys[tile], key, queries.words[tile][step]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        mma_m16n8k16<T>(of_values[tile], value, outputs.parts[0].words[tile][step]);
#pragma unroll
      for (int tile = 0; Parts::kCount == 3 && tile < kTiles; ++tile)
        mma_m16n8k16<T>(smaller[tile], value, outputs.parts[1].words[tile][step]);
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      float& logit = logits.numbers[i / 4][i % 4];
      float& product = products.numbers[i / 4][i % 4];
      logit = first == 0 ? of_keys[i / 4][i % 4] : logit + of_keys[i / 4][i % 4];
      product = first == 0 ? of_values[i / 4][i % 4] : product + of_values[i / 4][i % 4];
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) {
    float& product = products.numbers[i / 4][i % 4];
    product = fmaf(smaller[i / 4][i % 4], 1 / Parts::kShift, product);
  }
}

}  // namespace window_tiles
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
