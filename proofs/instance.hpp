// What every theorem speaks of: one KV group's cache as some queries see it, with a choice of what to keep.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <string>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::proofs {

struct Instance {
  int64_t query_heads = 1;         ///< of the group; each has the same number of queries
  Matrix logits;                   ///< [query_heads * queries, tokens], natural log; row h * queries + i
  Matrix values;                   ///< [tokens, head_dim]
  Matrix output_projection;        ///< [query_heads * head_dim, model_dim]; row block h is head h's
  std::vector<int64_t> stage_one;  ///< ascending, not empty, part of kept: whatever is kept before stage two
  std::vector<int64_t> kept;       ///< ascending
  double epsilon = 0;              ///< of stage two's score (A + epsilon) ||V||, >= 0

  int64_t tokens() const { return logits.cols(); }
  int64_t queries() const { return logits.rows() / query_heads; }
  int64_t stage_two_count() const { return static_cast<int64_t>(kept.size() - stage_one.size()); }
  MatrixView projection_of(int64_t query_head) const {
    return output_projection.view().middle_rows(query_head * values.cols(), values.cols());
  }
};

/// Logits are within +-20000, values and projections within +-1e50: all that 50 digits and doubles can tell.
///
/// throws  ShapeMismatch or NonFinite, which name what is wrong
void require_valid(const Instance& instance);

/// What an instance is an example of, measured on its numbers whatever it was drawn for.
enum class Regime {
  small_stage_one,         ///< sigma < 1/2 for a query
  almost_nothing_evicted,  ///< 0 < evicted mass < 1e-12 for a query
  dominated,               ///< one entry holds more than 1 - 1e-12 of a query's attention, but not all
  tied,                    ///< two tokens outside stage one that nothing tells apart: no query, no value
  empty_stage_two,         ///< stage one is all that is kept
  single_kept,             ///< one entry is kept
};
inline constexpr Regime kRegimes[] = {Regime::small_stage_one, Regime::almost_nothing_evicted,
                                      Regime::dominated,       Regime::tied,
                                      Regime::empty_stage_two, Regime::single_kept};
const char* name(Regime regime);
bool shows(const Instance& instance, Regime regime);

/// Whether two tokens are the same to every query and in their values, so that even the reference's last bit agrees.
bool twins(const Instance& instance, int64_t a, int64_t b);

/// The largest instance that a generator draws.
struct Sizes {
  int64_t tokens = 32;
  int64_t head_dim = 6;
  int64_t model_dim = 8;
  int64_t query_heads = 1;
  int64_t queries = 1;
};

/// Instances on dyadic grids, so that they print in full and small sums of them are exact.
///
/// Attention is level (all weights equal: masses of 1/2 are exact), flat, peaked, power-law, tied, with a sink,
/// huge (within +-10^4) or plain; values are plain, tied, tiny at the sink, or opposed (what is kept pulls
/// against what is evicted, where bounds are tight); the kept set is arbitrary or the best; stage one is all of
/// it, its best, its worst or a part.
///
/// They shrink to what is simpler (simpler.hpp).
rc::Gen<Instance> instances(Sizes largest);

}  // namespace kvbound::proofs
