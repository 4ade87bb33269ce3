// Scores of 16 tokens by some queries of a head, in a warp's registers, for OBCache's scores of a prompt by
// tensor cores: from their logits, and from the products of values with the queries' outputs times G.
#pragma once

#include <kvbound/cuda/primitives/exponential.hpp>
#include <kvbound/cuda/primitives/number_parts.hpp>

#include "obcache_kernels.hpp"
#include "query_parts.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace obcache_kernels {

/// One query's numbers that its scores need.
struct alignas(16) KnownQuery {
  float offset;       ///< minus its log-sum-exp, to base 2; -infinity for one that does not exist
  float output_norm;  ///< o G o
  float scale;        ///< of products with its output
  int dominant;       ///< token of the split; negative for none

  /// Of query `place` of a part's head, over a split of `count` tokens that begins with token `first`.
  template <Change change, Storage16 T>
  __device__ static KnownQuery of(const Arguments<T>& p, const window_tiles::QueryPart& part, int place,
                                  float output_scale, int64_t first, int count) {
    KnownQuery query{window_tiles::offset_of(p.window, part, place, p.log_sum_exp), 0, output_scale, -1};
    if (change == Change::value || !part.exists || place >= p.window.size()) return query;
    const int64_t n = place * p.window.queries.slices + part.head;
    query.output_norm = p.output_norms[n];
    if (leaves_out_dominant(change)) {
      const int64_t token = p.dominant[n] - first;
      if (token >= 0 && token < count) query.dominant = static_cast<int>(token);
    }
    return query;
  }
};

/// The scores by a part's queries, of which a thread has 2 kTiles as PartProducts has them.
template <Change change, Storage16 T, int kTiles>
struct PartScores {
  using Products = window_tiles::PartProducts<kTiles>;
  const Arguments<T>& p;
  const window_tiles::QueryPart part;
  const KnownQuery* const known;  ///< of the part's queries; read where they are used, which saves registers

  /// Puts the sum over the thread's queries of each of its two tokens' scores into `sums`.
  ///
  /// products  of values and outputs times G, before they are multiplied by KnownQuery::scale
  /// binary    what logits are multiplied by for base 2
  /// norm      of the two values
  /// token     the first of the 16, of the split
  __device__ void add_up(Products& logits, Products& products, float binary, const float (&norm)[2],
                         const window_tiles::Visible& visible, int token, float (&sums)[2]) const {
    if (form(logits, products, binary, norm, visible.all, token)) put_special_scores(logits, visible, token);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] = logits.of(half, 0);
#pragma unroll
      for (int i = 1; i < Products::kOwn; ++i) sums[half] += logits.of(half, i);
    }
  }

 private:
  // Puts the scores in the place of the logits. No branch stands between them, so that all of a thread are
  // formed at a time. Returns whether some have to be put right afterwards.
  __device__ bool form(Products& logits, Products& products, float binary, const float (&norm)[2],
                       int seen_by_all, int token) const {
    bool special = token + kRowsAtOnce > seen_by_all;  // hidden from some queries
#pragma unroll
    for (int i = 0; i < Products::kOwn; ++i) {
      const KnownQuery query = known[part.column(i)];
      if (leaves_out_dominant(change))
        special |= static_cast<unsigned>(query.dominant - token) < unsigned{kRowsAtOnce};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float logit = logits.of(half, i), weight = power_of_two(fmaf(logit, binary, query.offset));
        float product = products.of(half, i);
        if constexpr (NumberParts<T>::kScales) product *= query.scale;
        logits.of(half, i) =
            score_of(obcache_terms::table_2<change>(weight, 1 - weight, logit * p.window.scale), norm[half],
                     product, query.output_norm);
      }
    }
    return special;
  }

  // Puts the scores that tokens have because a query does not see them, or because they are its dominant
  // ones.
  __device__ void put_special_scores(Products& scores, const window_tiles::Visible& visible,
                                     int token) const {
#pragma unroll
    for (int i = 0; i < Products::kOwn; ++i) {
      const int dominant = known[part.column(i)].dominant;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own = token + Products::token(half);
        if (!visible.sees(i, own)) {
          scores.of(half, i) = 0;
        } else if (leaves_out_dominant(change) && own == dominant) {
          scores.of(half, i) = p.dominant_scores[part.place(i) * p.window.queries.slices + part.head];
        }
      }
    }
  }
};

}  // namespace obcache_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
