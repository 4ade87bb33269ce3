// An instance, the common input of all theorems: one KV head's cache, the logits of some queries, and the
// kept entries; for theorems on merging also votes, query vectors and a moving average.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::proofs {

struct Instance {
  int64_t query_heads = 1;         ///< number of heads of the group; each has the same number of queries
  Matrix logits;                   ///< [query_heads * queries, tokens], natural log; row h * queries + i
  Matrix values;                   ///< [tokens, head_dim]
  Matrix output_projection;        ///< [query_heads * head_dim, model_dim]; row block h is head h's
  std::vector<int64_t> stage_one;  ///< ascending, not empty, part of kept: the entries kept before stage two
  std::vector<int64_t> kept;       ///< ascending
  double epsilon = 0;              ///< of stage two's score (A + epsilon) ||V||, >= 0

  // For theorems on merging only; else empty.
  std::vector<double> votes;  ///< [tokens], 1..1e9
  /// [rows of logits, rows of logits], lower triangular: the query of each row of logits.
  Matrix query_vectors;
  double ema = 0;  ///< a moving average's weight of the past, 0 <= ema < 1

  int64_t tokens() const { return logits.cols(); }
  int64_t queries() const { return logits.rows() / query_heads; }
  bool merges() const { return !votes.empty(); }
  int64_t stage_two_count() const { return static_cast<int64_t>(kept.size() - stage_one.size()); }
  MatrixView projection_of(int64_t query_head) const {
    return output_projection.view().middle_rows(query_head * values.cols(), values.cols());
  }
};

/// Checks an instance. Logits must be within +-20000, values and projections
/// within +-1e50, the range in which 50 digits and doubles suffice.
///
/// Votes must be 1 to 1e9, query vectors within +-1e6 and at least 1e-6 in size on the diagonal.
///
/// throws  ShapeMismatch or NonFinite, which name the wrong field
void require_valid(const Instance& instance);

/// The tokens that are not among these entries; both ascending.
std::vector<int64_t> all_but(const Instance& instance, const std::vector<int64_t>& entries);

/// Whether two tokens have equal logits for every query and equal values, so that even the
/// reference's last bits agree.
bool twins(const Instance& instance, int64_t a, int64_t b);

}  // namespace kvbound::proofs
