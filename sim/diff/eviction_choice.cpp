#include "eviction_choice.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <fmt/format.h>

namespace kvbound::sim {

using Positions = std::vector<int64_t>;

int64_t EvictionPlace::own() const {
  const std::optional<int64_t> entry = stepper.own_choice();
  return entry ? stepper.cache().positions[*entry] : kNoPosition;
}

Positions EvictionPlace::candidates() const {
  const reference::HeadCache& cache = stepper.cache();
  const auto position_of = [&](int64_t entry) { return cache.positions[entry]; };
  Positions entries;
  for (int64_t entry = 0; entry < cache.entries(); ++entry) {
    if (!rules.always_keeps(position_of(entry), stepper.newest())) entries.push_back(entry);
  }
  std::ranges::sort(entries, {}, position_of);
  return entries;
}

Positions EvictionPlace::positions_of(const Positions& entries) const {
  Positions positions;
  for (const int64_t entry : entries) positions.push_back(stepper.cache().positions[entry]);
  return positions;
}

Positions EvictionPlace::kept(const Positions& positions, int64_t evicted) {
  Positions kept(positions.size());
  std::iota(kept.begin(), kept.end(), 0);
  kept.erase(kept.begin() + (std::ranges::lower_bound(positions, evicted) - positions.begin()));
  return kept;
}

std::optional<Choice> judge_unscored(const EvictionPlace& place, int64_t claimed) {
  const int64_t own = place.own();
  const auto wrong = [&](int64_t teacher_forced, const std::string& note) {
    return Choice{teacher_forced, true, false, false, wrong_choice(place.at, claimed, own, note)};
  };
  const std::string sizes = fmt::format("the cache has {} entries and the budget is {}",
                                        place.stepper.cache().entries(), place.budget);
  if (claimed == kNoPosition) return wrong(own, fmt::format("nothing was evicted, but {}", sizes));
  if (place.stepper.cache().find(claimed) < 0) {
    return wrong(own, fmt::format("position {} was evicted, which is not in the cache", claimed));
  }
  if (own == kNoPosition)
    return wrong(claimed, fmt::format("position {} was evicted, but {}", claimed, sizes));
  if (place.rules.always_keeps(claimed, place.stepper.newest())) {
    return wrong(claimed, fmt::format("position {} was evicted, which always stays", claimed));
  }
  if (!place.stepper.eviction().is_scored()) {
    return wrong(claimed, fmt::format("position {} was evicted rather than {}", claimed, own));
  }
  return std::nullopt;
}

Choice judge_scored(const EvictionPlace& place, int64_t claimed, const Positions& positions,
                    const std::optional<Fault>& fault) {
  if (!fault) return {claimed, true, true};
  const int64_t better = positions[fault->better], chosen = positions[fault->chosen];
  const double apart = std::abs(fault->excess());
  const std::string note = fmt::format(
      "position {} stayed rather than {}, by {}: {:.9g} against {:.9g}, which are {:.3g} apart; both error bounds together are {:.3g}",
      chosen, better, fault->by, fault->chosen_score, fault->better_score, apart, fault->band);
  return {claimed, true, false, false, wrong_choice(place.at, claimed, chosen, note, apart, fault->band)};
}

}  // namespace kvbound::sim
