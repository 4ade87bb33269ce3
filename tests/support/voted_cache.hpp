// A cache whose entries are scored, and the comparison of the scores with their definitions in 50 digits.
#pragma once

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/eviction/obcache.hpp>

#include "change_oracle.hpp"

namespace kvbound::test {

/// One KV head's entries and the query heads that attend to them.
struct VotedCache {
  Matrix keys, values, queries;  ///< [entries, head_dim] twice, [heads, head_dim]
  Matrix output_projection;      ///< [heads * head_dim, model_dim]; empty: scores in the head's own space
  double scale = 1;
  std::vector<double> votes = {};  ///< [entries]; empty: all 1

  MatrixView projection(int64_t head) const {
    return output_projection.rows() == 0
               ? MatrixView()
               : output_projection.view().middle_rows(head * keys.cols(), keys.cols());
  }
  reference::ScoredAttention scored(reference::Change change) const {
    std::vector<reference::ValueSpace> spaces;
    Matrix norms(queries.rows(), values.rows());
    for (int64_t h = 0; h < queries.rows(); ++h) {
      spaces.push_back(output_projection.rows() == 0
                           ? reference::ValueSpace()
                           : reference::ValueSpace(Space::projected, projection(h)));
      std::ranges::copy(spaces.back().squared_norms(values), norms.row(h).begin());
    }
    return reference::scored_attention(change, queries, {keys, values, norms, spaces, votes}, scale);
  }
  std::vector<double> scores(reference::Change change, int64_t head = 0) const {
    const reference::ScoredAttention attention = scored(change);
    const VectorView row = attention.scores.row(head);
    return {row.begin(), row.end()};
  }
};

/// Compares the outputs, weights and scores with their definitions; with votes not for Change::slot.
inline void expect_definition(const VotedCache& cache, reference::Change change) {
  using oracle::Real;
  const reference::ScoredAttention attention = cache.scored(change);
  for (int64_t h = 0; h < cache.queries.rows(); ++h) {
    const oracle::Reals logits = oracle::exact_logits(cache.queries.row(h), cache.keys, cache.scale);
    const oracle::Reals votes(cache.votes.begin(), cache.votes.end());
    const oracle::Reals weights = oracle::softmax(votes.empty() ? logits : oracle::voted(votes, logits));
    std::vector<oracle::Measured> output(cache.values.cols());
    for (int64_t j = 0; j < cache.keys.rows(); ++j) {
      SCOPED_TRACE("head " + std::to_string(h) + ", entry " + std::to_string(j));
      const Real& weight = weights[j];
      EXPECT_TRUE(oracle::near(attention.weights(h, j), {weight, weight}));
      EXPECT_TRUE(oracle::near(attention.scores(h, j), oracle::change(change, logits, cache.values,
                                                                      cache.projection(h), j, cache.votes)));
      EXPECT_GE(attention.scores(h, j), 0);
      for (size_t c = 0; c < output.size(); ++c) output[c] += Real(weight * cache.values(j, c));
    }
    for (size_t c = 0; c < output.size(); ++c)
      EXPECT_TRUE(oracle::near(attention.output.row(h)[c], output[c]));
  }
}

}  // namespace kvbound::test
