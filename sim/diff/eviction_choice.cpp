#include "eviction_choice.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include <fmt/format.h>

namespace kvbound::sim {

using Positions = std::vector<int64_t>;

Positions EvictionCandidates::without(int64_t position) const {
  Positions kept;
  for (int64_t i = 0; i < std::ssize(positions); ++i) {
    if (positions[i] != position) kept.push_back(i);
  }
  return kept;
}

int64_t EvictionPlace::own() const {
  const std::optional<int64_t> entry = stepper.own_choice();
  return entry ? stepper.cache().positions[*entry] : kNoPosition;
}

EvictionCandidates EvictionPlace::candidates() const {
  const reference::HeadCache& cache = stepper.cache();
  const auto position_of = [&](int64_t entry) { return cache.positions[entry]; };
  EvictionCandidates candidates;
  for (int64_t entry = 0; entry < cache.entries(); ++entry) {
    if (!rules.always_keeps(position_of(entry), stepper.newest())) candidates.entries.push_back(entry);
  }
  std::ranges::sort(candidates.entries, {}, position_of);
  std::ranges::transform(candidates.entries, std::back_inserter(candidates.positions), position_of);
  return candidates;
}

std::optional<Choice> judge_unscored(const EvictionPlace& place, int64_t claimed) {
  const int64_t own = place.own();
  const auto wrong = [&](int64_t teacher_forced, const std::string& note) {
    return wrong_choice(place.at, teacher_forced, claimed, own, note);
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
    return wrong(claimed, fmt::format("position {} was evicted, which is always kept", claimed));
  }
  if (!place.stepper.eviction().is_scored()) {
    return wrong(claimed, fmt::format("position {} was evicted rather than {}", claimed, own));
  }
  return std::nullopt;
}

Choice judge_scored(const EvictionPlace& place, int64_t claimed, const EvictionCandidates& candidates,
                    const std::optional<Fault>& fault) {
  if (!fault) return near_tie_choice(claimed);
  const int64_t better = candidates.positions[fault->better], chosen = candidates.positions[fault->chosen];
  const double apart = std::abs(fault->excess());
  const std::string note =
      fmt::format("position {} stayed rather than {}, {}", chosen, better, text_of(*fault));
  return wrong_choice(place.at, claimed, claimed, chosen, note, apart, fault->band);
}

}  // namespace kvbound::sim
