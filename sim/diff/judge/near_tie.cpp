#include "near_tie.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>

namespace kvbound::sim {
namespace {

double at(VectorView numbers, int64_t i) { return numbers[i]; }

// The smallest and the largest value that the tested implementation may have computed for a score.
double lower(const UncertainScores& scores, int64_t i) {
  return std::isfinite(at(scores.errors, i)) ? at(scores.scores, i) - at(scores.errors, i) : -kInfinity;
}
double upper(const UncertainScores& scores, int64_t i) {
  return std::isfinite(at(scores.errors, i)) ? at(scores.scores, i) + at(scores.errors, i) : kInfinity;
}

std::vector<int64_t> complement(std::span<const int64_t> ascending, int64_t count) {
  std::vector<int64_t> rest;
  auto next = ascending.begin();
  for (int64_t i = 0; i < count; ++i) {
    if (next != ascending.end() && *next == i) {
      ++next;
    } else {
      rest.push_back(i);
    }
  }
  return rest;
}

// The number of insiders that at least inside.size() other entries clearly beat, so that no
// ranking selects them. At least 1: the caller found a fault, though each insider alone may be
// selectable if the others are not.
int64_t surely_wrong(const UncertainScores& scores, std::span<const int64_t> inside,
                     std::span<const int64_t> outside) {
  std::vector<double> lowers;
  for (const int64_t i : inside) lowers.push_back(lower(scores, i));
  for (const int64_t i : outside) lowers.push_back(lower(scores, i));
  std::ranges::sort(lowers);
  const auto wrong = std::ranges::count_if(inside, [&](int64_t j) {
    const auto better = lowers.end() - std::ranges::upper_bound(lowers, upper(scores, j));
    return better >= static_cast<std::ptrdiff_t>(inside.size());
  });
  return std::max<int64_t>(1, wrong);
}

// Applies the near-tie rule to entries inside and outside. The worst pair is the outsider of largest lower
// limit and the insider of smallest upper limit.
std::optional<Fault> fault(const char* by, const UncertainScores& scores, std::span<const int64_t> inside,
                           std::span<const int64_t> outside) {
  if (inside.empty() || outside.empty()) return std::nullopt;
  const int64_t better = *std::ranges::max_element(outside, {}, [&](int64_t i) { return lower(scores, i); });
  const int64_t chosen = *std::ranges::min_element(inside, {}, [&](int64_t j) { return upper(scores, j); });
  const double least = lower(scores, better);
  if (!(least > upper(scores, chosen))) return std::nullopt;
  return Fault{by,
               chosen,
               better,
               at(scores.scores, chosen),
               at(scores.scores, better),
               at(scores.errors, chosen) + at(scores.errors, better),
               surely_wrong(scores, inside, outside)};
}

}  // namespace

std::vector<int64_t> difference(std::span<const int64_t> all, std::span<const int64_t> others) {
  std::vector<int64_t> result;
  std::ranges::set_difference(all, others, std::back_inserter(result));
  return result;
}

CountRange CountRange::most(const CountRange& a, const CountRange& b) {
  return {std::max(a.first, b.first), std::max(a.last, b.last)};
}

std::optional<Fault> top_k_fault(const UncertainScores& scores, std::span<const int64_t> selected) {
  const auto candidates = std::ssize(scores.scores);
  return fault("score", scores, selected, complement(selected, candidates));
}

// Let R be the selected entries that need not come from stage one; some of them fill it up. A stage one
// S1 is legal iff the largest `lower` outside S1 is at most the smallest `upper` inside. Let Z be the
// largest `lower` among the entries not selected: members of S1 need upper >= Z. Among the entries of R
// with upper >= Z, take those of largest `lower`. Claim: if any S1 is legal, this one is. Let a legal
// S1 contain y but not x, both in R with upper >= Z and lower_x >= lower_y, where x is the first such
// entry missing. Exchange them. Then y is outside with lower_y <= lower_x <= every upper inside, and x
// is inside. If some z outside had lower_z > upper_x, then lower_z > lower_x, so z would be in R
// (otherwise lower_z <= Z <= upper_x), with upper_z >= lower_z > upper_x >= Z, and z would be missing
// before x, a contradiction.
std::optional<Fault> critical_fault(const UncertainScores& attention, const UncertainScores& stage_two,
                                    std::span<const int64_t> selected, int64_t stage_one_count) {
  const std::vector<int64_t> left_out = complement(selected, std::ssize(attention.scores));
  double second_best = -kInfinity, best_left = -kInfinity;
  for (const int64_t i : left_out) {
    second_best = std::max(second_best, lower(stage_two, i));
    best_left = std::max(best_left, lower(attention, i));
  }
  std::vector<int64_t> stage_one, others;
  for (const int64_t j : selected) (upper(stage_two, j) < second_best ? stage_one : others).push_back(j);
  const auto needed = std::ssize(stage_one);
  if (needed > stage_one_count) {
    // Those of largest attention score may come from stage one; the others are faults.
    std::ranges::stable_sort(stage_one, std::greater<>(), [&](int64_t j) { return upper(attention, j); });
    const auto surplus = std::span<const int64_t>(stage_one).subspan(stage_one_count);
    return fault("stage-two score", stage_two, surplus, left_out);
  }
  const auto order = [&](int64_t a, int64_t b) {
    const bool fit_a = upper(attention, a) >= best_left, fit_b = upper(attention, b) >= best_left;
    return fit_a != fit_b ? fit_a : lower(attention, a) > lower(attention, b);
  };
  std::ranges::stable_sort(others, order);
  const auto first_outside = others.begin() + (stage_one_count - needed);
  stage_one.insert(stage_one.end(), others.begin(), first_outside);
  std::vector<int64_t> outside(first_outside, others.end());
  outside.insert(outside.end(), left_out.begin(), left_out.end());
  return fault("attention score", attention, stage_one, outside);
}

std::optional<Fault> critical_fault(const UncertainScores& attention, const UncertainScores& stage_two,
                                    std::span<const int64_t> selected, const CountRange& stage_one_counts) {
  std::optional<Fault> least;
  for (int64_t count = stage_one_counts.first; count <= stage_one_counts.last; ++count) {
    const std::optional<Fault> found = critical_fault(attention, stage_two, selected, count);
    if (!found) return std::nullopt;
    if (!least || found->faulty < least->faulty) least = found;
  }
  return least;
}

bool separates(const UncertainScores& scores) {
  double best = -kInfinity, worst = kInfinity;
  for (int64_t i = 0; i < std::ssize(scores.scores); ++i) {
    best = std::max(best, lower(scores, i));
    worst = std::min(worst, upper(scores, i));
  }
  return best > worst;
}

std::string text_of(const Fault& fault) {
  return fmt::format(
      "by {}: {:.9g} against {:.9g}, which are {:.3g} apart; both error bounds together are {:.3g}", fault.by,
      fault.chosen_score, fault.better_score, std::abs(fault.excess()), fault.band);
}

std::vector<RankRange> rank_ranges(const UncertainScores& scores) {
  const auto count = std::ssize(scores.scores);
  std::vector<double> lowers, uppers;
  for (int64_t i = 0; i < count; ++i) {
    lowers.push_back(lower(scores, i));
    uppers.push_back(upper(scores, i));
  }
  std::ranges::sort(lowers);
  std::ranges::sort(uppers);
  std::vector<RankRange> ranks;
  for (int64_t i = 0; i < count; ++i) {
    const auto ahead = lowers.end() - std::ranges::upper_bound(lowers, upper(scores, i));
    const auto not_behind = uppers.end() - std::ranges::lower_bound(uppers, lower(scores, i));
    ranks.push_back({ahead + 1, not_behind});  // `not_behind` includes the entry itself
  }
  return ranks;
}

CountRange adaptive_counts(VectorView weights, VectorView errors, std::span<const int64_t> always_kept,
                           std::span<const int64_t> candidates, const std::vector<RankRange>& ranks,
                           int64_t k, double adding) {
  double least = 0, most = 0;
  for (const int64_t position : always_kept) {
    least += at(weights, position) - at(errors, position);
    most += at(weights, position) + at(errors, position);
  }
  // The s best candidates have at least the mass of those certainly among them, and at most that of
  // those possibly among them.
  std::vector<double> sure(static_cast<size_t>(k) + 1), possible(sure.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double weight = at(weights, candidates[i]), error = at(errors, candidates[i]);
    if (ranks[i].worst <= k) sure[ranks[i].worst] += std::max(0.0, weight - error);
    if (ranks[i].best <= k) possible[ranks[i].best] += weight + error;
  }
  CountRange range{k, k};
  bool may = false;
  for (int64_t s = 0; s <= k; ++s) {
    least += sure[s];
    most += possible[s];
    if (!may && most * (1 + adding) > 0.5) {
      range.first = s;
      may = true;
    }
    if (least * (1 - adding) > 0.5) {
      range.last = s;
      break;
    }
  }
  return range;
}

CountRange stage_one_range(const TwoStage& options, int64_t k, const std::function<CountRange()>& adaptive) {
  if (!options.alpha) return adaptive();
  const int64_t count = reference::stage_one_count(options, k, {});
  return {count, count};
}

}  // namespace kvbound::sim
