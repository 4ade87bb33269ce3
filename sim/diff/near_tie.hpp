// Whether another implementation's selection differs from the reference's by rounding alone.
//
// Scores come with bounds on how far the tested implementation's may be off. A tested implementation that is honest
// about its own scores may prefer j to i only if score_i - score_j <= error_i + error_j: everything else is no near tie
// but a fault.
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

/// The reference's scores of all candidates, and how far the tested implementation's may be off.
struct UncertainScores {
  VectorView scores;  ///< [candidates]
  VectorView errors;  ///< [candidates], >= 0; what is not finite says nothing of its score
};

/// An entry that should have stayed, and one that stayed in its place.
struct Fault {
  std::string by;      ///< which score says so
  int64_t chosen = 0;  ///< candidate
  int64_t better = 0;  ///< candidate that is better by more than both errors
  double chosen_score = 0;
  double better_score = 0;
  double band = 0;  ///< both errors together
  int64_t faulty =
      1;  ///< how many chosen candidates have no place by any reading of their scores; at least 1

  double excess() const { return better_score - chosen_score; }
};

/// Sizes of stage one that rounding may lead to, first..last.
struct CountRange {
  int64_t first = 0;
  int64_t last = 0;

  /// Of several queries, of which the one that needs most decides.
  static CountRange most(const CountRange& a, const CountRange& b);
};

/// The near-tie rule for a top-k selection.
///
///     legal  <=>  score_i - score_j <= error_i + error_j   for every i left out and j selected
///
/// selected  ascending, each once
/// returns   nothing if legal, else the worst pair
std::optional<Fault> top_k_fault(const UncertainScores& scores, std::span<const int64_t> selected);

/// The near-tie rule for CriticalKV's two stages: is there a stage one that explains the selection?
///
/// Selected entries that stage two's rule does not allow beside what was left out must come from stage one. Stage one
/// is filled up with the best of the others, by attention; legal if no entry outside it clearly beats one inside.
/// The choice among the others is the best there can be: near_tie.cpp.
///
/// stage_one_count  0..selected
std::optional<Fault> critical_fault(const UncertainScores& attention, const UncertainScores& stage_two,
                                    std::span<const int64_t> selected, int64_t stage_one_count);

/// The same of any size of stage one that rounding may lead to: legal if it is for one of them, else the fault of the size with the
/// fewest faulty candidates.
std::optional<Fault> critical_fault(const UncertainScores& attention, const UncertainScores& stage_two,
                                    std::span<const int64_t> selected, const CountRange& stage_one_counts);

/// Whether the errors leave the best candidate surely above the worst: if not, every choice is as good as any other.
bool separates(const UncertainScores& scores);

/// What a message says of a fault: by which score, both scores, their distance and both bounds.
std::string text_of(const Fault& fault);

/// Places that an entry may have in another implementation's ranking, from 1.
struct RankRange {
  int64_t best = 1;
  int64_t worst = 1;
};
/// best = 1 + how many clearly beat it; worst = 1 + how many it does not clearly beat.
std::vector<RankRange> rank_ranges(const UncertainScores& scores);

/// Those of k selected entries: one size only unless alpha is adaptive.
///
/// adaptive  their range if it is; not called otherwise
CountRange stage_one_range(const TwoStage& options, int64_t k, const std::function<CountRange()>& adaptive);

/// For one query of one query head: the smallest s for which the mass of the always-kept entries and the s best exceeds
/// 1/2, with every weight anywhere within its error and the ranking anywhere within its ranges; k if none does.
///
/// weights, errors  [tokens]
/// always_kept      positions
/// candidates       [candidates] positions
/// ranks            [candidates]
/// adding           what adding up all weights may cost, relatively
CountRange adaptive_counts(VectorView weights, VectorView errors, std::span<const int64_t> always_kept,
                           std::span<const int64_t> candidates, const std::vector<RankRange>& ranks,
                           int64_t k, double adding);

}  // namespace kvbound::sim
