// Judges whether another implementation's selection differs from the reference's by rounding alone.
//
// Every score has a bound on how far the tested implementation's may differ from it. An implementation that
// selects by its own scores may prefer j to i only if score_i - score_j <= error_i + error_j; any other
// preference is a fault, not a near tie.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// The reference's scores of all candidates, with bounds on the errors of the tested implementation's scores.
struct UncertainScores {
  VectorView scores;  ///< [candidates]
  VectorView errors;  ///< [candidates], >= 0; infinite or NaN: the score may be anything
};

/// The numbers of an ascending list that another does not hold.
std::vector<int64_t> difference(std::span<const int64_t> all, std::span<const int64_t> others);

/// A candidate that should have been kept, and one that was kept in its place.
struct Fault {
  std::string by;      ///< name of the score that decides
  int64_t chosen = 0;  ///< candidate that was selected
  int64_t better = 0;  ///< candidate whose score is larger by more than the sum of both errors
  double chosen_score = 0;
  double better_score = 0;
  double band = 0;     ///< sum of both errors
  int64_t faulty = 1;  ///< selected candidates that no scores within the errors would select; at least 1

  double excess() const { return better_score - chosen_score; }
};

/// The sizes of stage one that rounding may lead to, first..last.
struct CountRange {
  int64_t first = 0;
  int64_t last = 0;

  /// The range of the larger of two sizes: with several queries, the one that needs most entries decides.
  static CountRange most(const CountRange& a, const CountRange& b);
};

/// The near-tie rule for a top-k selection.
///
///     legal  <=>  score_i - score_j <= error_i + error_j   for every i not selected and j selected
///
/// selected  ascending, without repetition
/// returns   nullopt if legal, otherwise the pair with the largest violation
std::optional<Fault> top_k_fault(const UncertainScores& scores, std::span<const int64_t> selected);

/// The near-tie rule for CriticalKV's two stages: does some stage one explain the selection?
///
/// Selected entries that stage two's rule cannot prefer to the entries not selected must come from
/// stage one. Stage one is filled up with other selected entries, by attention; the selection is legal
/// if no entry outside stage one clearly beats an entry inside. near_tie.cpp proves that if any
/// filling is legal, this one is.
///
/// stage_one_count  0..number of selected entries
std::optional<Fault> critical_fault(const UncertainScores& attention, const UncertainScores& stage_two,
                                    std::span<const int64_t> selected, int64_t stage_one_count);

/// The same for every size of stage one that rounding may lead to: legal if one size is legal, otherwise the
/// fault of the size with the fewest faulty candidates.
std::optional<Fault> critical_fault(const UncertainScores& attention, const UncertainScores& stage_two,
                                    std::span<const int64_t> selected, const CountRange& stage_one_counts);

/// Whether the best candidate is above the worst whatever the errors are. If not, every selection is legal.
bool separates(const UncertainScores& scores);

/// The text of a fault in messages: the score's name, both scores, their distance and the sum of both bounds.
std::string text_of(const Fault& fault);

/// The ranks that an entry may have in another implementation's ranking; the best rank is 1.
struct RankRange {
  int64_t best = 1;
  int64_t worst = 1;
};
/// best = 1 + number of entries that clearly beat it; worst = 1 + number of other entries that
/// it does not clearly beat.
std::vector<RankRange> rank_ranges(const UncertainScores& scores);

/// The sizes of stage one among k selected entries: a single size unless alpha is adaptive.
///
/// adaptive  computes the range of an adaptive alpha; not called otherwise
CountRange stage_one_range(const TwoStage& options, int64_t k, const std::function<CountRange()>& adaptive);

/// For one query of one query head: the range of the smallest s for which the attention mass of the
/// always-kept entries and of the s best candidates exceeds 1/2, or k if there is no such s. Every weight may
/// be anywhere within its error, and every rank anywhere within its range.
///
/// weights, errors  [tokens]
/// always_kept      positions
/// candidates       [candidates] positions
/// ranks            [candidates]
/// adding           bound on the relative rounding error of adding up all weights
CountRange adaptive_counts(VectorView weights, VectorView errors, std::span<const int64_t> always_kept,
                           std::span<const int64_t> candidates, const std::vector<RankRange>& ranks,
                           int64_t k, double adding);

}  // namespace kvbound::sim
