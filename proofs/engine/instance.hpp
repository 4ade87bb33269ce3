// What every theorem speaks of: one KV group's cache as some queries see it, with a choice of what to keep, and for the
// theorems of merging with what turns those who leave into votes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <rapidcheck.h>

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

  // What merging needs besides: empty, and of no matter, where nothing merges.
  std::vector<double> votes;  ///< [tokens], 1..1e9
  Matrix query_vectors;  ///< [rows of logits, as many], lower triangular: what the logits' rows are logits of
  double ema = 0;        ///< a moving average's weight of the past, 0 <= ema < 1

  int64_t tokens() const { return logits.cols(); }
  int64_t queries() const { return logits.rows() / query_heads; }
  bool merges() const { return !votes.empty(); }
  int64_t stage_two_count() const { return static_cast<int64_t>(kept.size() - stage_one.size()); }
  MatrixView projection_of(int64_t query_head) const {
    return output_projection.view().middle_rows(query_head * values.cols(), values.cols());
  }
};

/// Logits are within +-20000, values and projections within +-1e50: all that 50 digits and doubles can tell.
///
/// Votes are 1 to 1e9, query vectors within +-1e6 and on the diagonal at least 1e-6 in size.
///
/// throws  ShapeMismatch or NonFinite, which name what is wrong
void require_valid(const Instance& instance);
/// throws  NonFinite if a number is not within +-limit
void require_within(const std::string& what, VectorView numbers, double limit);

/// What an instance is an example of, measured on its numbers whatever it was drawn for.
enum class Regime {
  // of eviction
  small_stage_one,         ///< sigma < 1/2 for a query
  almost_nothing_evicted,  ///< 0 < evicted mass < 1e-12 for a query
  dominated,               ///< one entry holds more than 1 - 1e-12 of a query's attention, but not all
  tied,                    ///< two tokens outside stage one that nothing tells apart: no query, no value
  empty_stage_two,         ///< stage one is all that is kept
  single_kept,             ///< one entry is kept; merging, it speaks for all
  // of merging; scores are those of a head's first query
  nearly_singular,   ///< a group whose mean score has next to no logarithm: |m| < KL / 10^6
  nearly_agreed,     ///< a group whose scores differ, by next to nothing: 0 < KL < 10^-12
  agreed,            ///< a group of equal scores: KL = 0
  huge_logits,       ///< a logit beyond +-5000
  many_votes,        ///< an entry of 10^5 votes or more
  parallel_queries,  ///< two queries of cosine > 0.9999
  predicted,  ///< a group whose scores by a later query are all predicted within 100 %, its merged one, too
};
/// Those that theorems of eviction are to be tried in, and those of merging.
inline constexpr Regime kEvictionRegimes[] = {Regime::small_stage_one, Regime::almost_nothing_evicted,
                                              Regime::dominated,       Regime::tied,
                                              Regime::empty_stage_two, Regime::single_kept};
inline constexpr Regime kMergingRegimes[] = {
    Regime::single_kept, Regime::nearly_singular, Regime::nearly_agreed,    Regime::agreed,
    Regime::huge_logits, Regime::many_votes,      Regime::parallel_queries, Regime::predicted};
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
/// Those that merge have, besides, groups whose scores are shifted until m is next to 0, agree or nearly agree; queries
/// that come later and give nearly the same scores; queries next to parallel; votes of 1, a few, or up to 10^6.
///
/// They shrink to what is simpler (simpler.hpp).
rc::Gen<Instance> instances(Sizes largest);

}  // namespace kvbound::proofs
