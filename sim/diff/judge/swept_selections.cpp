#include "swept_selections.hpp"

#include <algorithm>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/eviction/selection.hpp>

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// Upper limits on the number of a selection's possible results that are tried, and on the number of
// candidates that are open.
constexpr int64_t kMostResults = 4096;
constexpr size_t kMostOpen = 64;

// The candidates of which rounding decides whether they are among the k of largest score.
Positions open_candidates(const UncertainScores& scores, const CountRange& counts) {
  Positions open;
  const std::vector<RankRange> ranks = rank_ranges(scores);
  for (int64_t i = 0; i < std::ssize(ranks); ++i) {
    if (ranks[i].best <= counts.last && ranks[i].worst > counts.first) open.push_back(i);
  }
  return open;
}

enum class Possibility { found, none, unknown };

// Whether rounding allows the selection to be one that is not clearly better than `rival`.
class WorseResult {
 public:
  WorseResult(const SweptSelection& selection, const std::function<UncertainNumber(const Positions&)>& bound,
              const UncertainNumber& rival)
      : selection_(selection),
        bound_(bound),
        rival_(rival),
        result_(difference(selection.own, selection.open)),
        to_choose_(std::ssize(selection.own) - std::ssize(result_)) {}

  Possibility search() {
    if (selection_.open.size() > kMostOpen) return Possibility::unknown;
    const bool found = choose(0, to_choose_);
    return found ? Possibility::found : tries_ > kMostResults ? Possibility::unknown : Possibility::none;
  }

 private:
  // Tries all sets with `count` more of the open candidates from this one on.
  bool choose(size_t next, int64_t count) {
    if (tries_ > kMostResults) return false;
    if (count == 0) return is_worse();
    if (std::ssize(selection_.open) - static_cast<int64_t>(next) < count) return false;
    result_.push_back(selection_.open[next]);
    const bool found = choose(next + 1, count - 1);
    result_.pop_back();
    return found || choose(next + 1, count);
  }

  bool is_worse() {
    ++tries_;
    Positions set = result_;
    std::ranges::sort(set);
    return !selection_.fault(set) && !bound_(set).is_clearly_below(rival_);
  }

  const SweptSelection& selection_;
  const std::function<UncertainNumber(const Positions&)>& bound_;
  const UncertainNumber rival_;
  Positions result_;
  const int64_t to_choose_;
  int64_t tries_ = 0;
};

}  // namespace

bool UncertainNumber::is_clearly_below(const UncertainNumber& other) const {
  return other.value - value > error + other.error;  // false for NaN, the difference of two infinities
}

SweptSelection swept_top_k(const UncertainScores& scores, int64_t k) {
  return {reference::select_top(scores.scores, k),
          [scores](std::span<const int64_t> set) { return top_k_fault(scores, set); },
          open_candidates(scores, {k, k})};
}

SweptSelection swept_critical(const UncertainScores& attention, const UncertainScores& stage_two, int64_t k,
                              const CountRange& stage_one_counts) {
  const auto fault = [attention, stage_two, stage_one_counts](std::span<const int64_t> set) {
    return critical_fault(attention, stage_two, set, stage_one_counts);
  };
  Positions own = reference::select_top(attention.scores, stage_one_counts.first);
  Positions open = open_candidates(attention, stage_one_counts);
  // Stage two chooses among those that are not surely in stage one.
  const Positions sure = difference(own, open);
  std::vector<double> scores, errors, exact(stage_two.scores.begin(), stage_two.scores.end());
  Positions left;
  for (int64_t i = 0; i < std::ssize(attention.scores); ++i) {
    if (std::ranges::binary_search(sure, i)) continue;
    left.push_back(i);
    scores.push_back(stage_two.scores[i]);
    errors.push_back(stage_two.errors[i]);
  }
  for (const int64_t i :
       open_candidates({scores, errors}, {k - stage_one_counts.last, k - std::ssize(sure)})) {
    open.push_back(left[i]);
  }
  std::ranges::sort(open);
  open.erase(std::unique(open.begin(), open.end()), open.end());
  for (const int64_t i : own) exact[i] = kInfinity;
  return {reference::select_top(exact, k), fault, std::move(open)};
}

SweepJudgement judge_sweep(const std::vector<SweptSelection>& selections,
                           const std::function<UncertainNumber(const Positions&)>& bound,
                           const Positions& own, const Positions& claimed) {
  std::optional<Fault> unexplained;
  bool is_explained = false;
  for (const SweptSelection& selection : selections) {
    const std::optional<Fault> fault = selection.fault(claimed);
    is_explained = is_explained || !fault;
    if (fault && (!unexplained || fault->faulty < unexplained->faulty)) unexplained = fault;
  }
  if (!is_explained) {
    unexplained->by = "score of the nearest mixture";
    unexplained->faulty = std::ssize(difference(claimed, own));
    return {unexplained, false};
  }
  SweepJudgement judgement;
  const UncertainNumber theirs = bound(claimed);
  for (const SweptSelection& selection : selections) {
    const UncertainNumber mine = bound(selection.own);
    if (!mine.is_clearly_below(theirs) || !selection.fault(claimed)) continue;
    const Possibility worse = WorseResult(selection, bound, theirs).search();
    judgement.undecided = judgement.undecided || worse == Possibility::unknown;
    if (worse != Possibility::none) continue;
    const Positions wrong = difference(claimed, own), missing = difference(own, claimed);
    Fault fault{"bound of the whole selection", wrong.front(),    missing.front(), theirs.value, mine.value,
                theirs.error + mine.error,      std::ssize(wrong)};
    return {fault, false};
  }
  return judgement;
}

}  // namespace kvbound::sim
