#include "merge_choice.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/merging/cam.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/reference/merging/nearest_key.hpp>

#include "target_rule.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// Cosines of the evicted entry's key with all other keys, with error bounds.
struct UncertainCosines {
  Positions positions;
  std::vector<double> cosines, errors;

  // Index of a position; nullopt if it is not in the cache.
  std::optional<size_t> index_of(int64_t position) const {
    const auto found = std::ranges::find(positions, position);
    if (found == positions.end()) return std::nullopt;
    return static_cast<size_t>(found - positions.begin());
  }
};

UncertainCosines cosines_of(const LeavingEntry& leaving, VectorView norms) {
  const reference::HeadCache& cache = leaving.cache;
  const VectorView key = cache.keys.row(leaving.entry);
  const std::vector<double> off = leaving.errors.stored_key(leaving.position(), key);
  UncertainCosines result;
  for (int64_t entry = 0; entry < cache.entries(); ++entry) {
    if (entry == leaving.entry) continue;
    const int64_t position = cache.positions[entry];
    const VectorView other = cache.keys.row(entry);
    result.positions.push_back(position);
    result.cosines.push_back(reference::cosine(key, norms[leaving.entry], other, norms[entry]));
    result.errors.push_back(reference::cosine_error(
        key, off, other, leaving.errors.stored_key(position, other), leaving.arithmetic));
  }
  return result;
}

std::string fault_text(int64_t leaving, int64_t claimed, int64_t own, double largest, double cosine) {
  const std::string what = claimed == kNoPosition ? "was dropped" : fmt::format("merged with {}", claimed);
  const std::string rather = own == kNoPosition ? "being dropped" : fmt::format("merging with {}", own);
  return fmt::format("position {} {} rather than {}: the largest cosine is {:.9g}, its own {:.9g}", leaving,
                     what, rather, largest, cosine);
}

}  // namespace

TargetJudgement judge_target(const LeavingEntry& leaving, const SimilarTarget& target,
                             const std::optional<int64_t>& claimed) {
  const reference::HeadCache& cache = leaving.cache;
  const std::vector<double> norms = reference::key_norms(cache.keys);
  const UncertainCosines others = cosines_of(leaving, norms);
  const reference::NearestKey nearest =
      reference::nearest_key(leaving.entry, cache.keys, norms, cache.positions);
  const bool merges = nearest.index >= 0 && reference::is_similar(nearest.cosine, target);
  const int64_t own = merges ? cache.positions[nearest.index] : kNoPosition;
  const TargetRule rule(target, others.cosines, others.errors);
  const int64_t possible = possible_outcomes(rule, others.positions.size());
  if (!claimed) return {unjudged_choice(own), leaving.certain && possible == 1};
  // Whether some other choice could have been found wrong. All outcomes: each other entry, and being dropped.
  const bool decided = leaving.certain && possible <= std::ssize(others.positions);
  const auto judged = [&](const Choice& choice) { return TargetJudgement{choice, leaving.certain}; };
  const auto wrong = [&](int64_t teacher_forced, const std::string& note) {
    return judged(wrong_choice(leaving.at, teacher_forced, *claimed, own, note));
  };
  if (*claimed == own) return judged(decided ? same_choice(own) : unjudged_choice(own));
  const std::optional<size_t> at = others.index_of(*claimed);
  if (*claimed != kNoPosition && !at) {
    return wrong(own, fmt::format("position {} merged with {}, which is not in the cache", leaving.position(),
                                  *claimed));
  }
  if (at ? rule.may_merge_with(*at) : rule.may_be_dropped())
    return judged(near_tie_choice(*claimed, decided));
  if (!leaving.certain) return judged(undecided_choice(*claimed));
  return wrong(*claimed, fault_text(leaving.position(), *claimed, own, nearest.cosine,
                                    at ? others.cosines[*at] : std::nan("")));
}

TargetJudgement judge_spread(const LeavingEntry& leaving, const Cam& cam, const MeanAttention& attention,
                             const std::optional<int64_t>& claimed) {
  const Positions& positions = leaving.cache.positions;
  const Positions entries = reference::following_entries(positions, leaving.position(), cam.neighbours);
  const int64_t first = entries.empty() ? kNoPosition : positions[entries.front()];
  const SpreadAmbiguity ambiguity = spread_ambiguity(
      cam, attention, leaving.entry, entries, leaving.at.kv_head, leaving.position(), leaving.arithmetic);
  const int64_t own = ambiguity.may && first != kNoPosition ? first : kNoPosition;
  if (!claimed) return {unjudged_choice(own), leaving.certain && !(ambiguity.may && ambiguity.may_not)};
  const bool legal = (*claimed == kNoPosition && ambiguity.may_not) || (*claimed == first && ambiguity.may);
  if (legal) {
    if (ambiguity.may && ambiguity.may_not) return {near_tie_choice(*claimed, false), leaving.certain};
    return {leaving.certain ? same_choice(own) : unjudged_choice(own), leaving.certain};
  }
  if (!leaving.certain) return {undecided_choice(own), false};
  const std::string rather =
      own == kNoPosition ? "is spread over no entry" : fmt::format("is spread from {} on", own);
  const std::string note = fmt::format("the value of position {} {}", leaving.position(), rather);
  return {wrong_choice(leaving.at, own, *claimed, own, note), true};
}

}  // namespace kvbound::sim
