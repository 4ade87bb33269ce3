#include "eviction_choice.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <fmt/format.h>

namespace kvbound::sim {

using Positions = std::vector<int64_t>;

int64_t Departure::own() const {
  const std::optional<int64_t> entry = eviction.who_leaves(cache, newest);
  return entry ? cache.positions[static_cast<size_t>(*entry)] : kNobody;
}

Positions Departure::candidates() const {
  const auto position_of = [&](int64_t entry) { return cache.positions[static_cast<size_t>(entry)]; };
  Positions entries;
  for (int64_t entry = 0; entry < cache.entries(); ++entry) {
    if (!rules.always_keeps(position_of(entry), newest)) entries.push_back(entry);
  }
  std::ranges::sort(entries, {}, position_of);
  return entries;
}

Positions Departure::positions_of(const Positions& entries) const {
  Positions positions;
  for (const int64_t entry : entries) positions.push_back(cache.positions[static_cast<size_t>(entry)]);
  return positions;
}

Positions Departure::staying(const Positions& positions, int64_t left) {
  Positions staying(positions.size());
  std::iota(staying.begin(), staying.end(), 0);
  staying.erase(staying.begin() + (std::ranges::lower_bound(positions, left) - positions.begin()));
  return staying;
}

std::optional<Choice> judge_unscored(const Departure& departure, int64_t claimed) {
  const int64_t own = departure.own();
  const auto wrong = [&](int64_t forced, const std::string& note) {
    return Choice{forced, true, false, false, wrong_choice(departure.at, claimed, own, note)};
  };
  const std::string sizes = fmt::format("the cache has {} entries and the budget is {}",
                                        departure.cache.entries(), departure.budget);
  if (claimed == kNobody) return wrong(own, fmt::format("nobody left, but {}", sizes));
  if (std::ranges::find(departure.cache.positions, claimed) == departure.cache.positions.end()) {
    return wrong(own, fmt::format("position {} left, which is not in the cache", claimed));
  }
  if (own == kNobody) return wrong(claimed, fmt::format("position {} left, but {}", claimed, sizes));
  if (departure.rules.always_keeps(claimed, departure.newest)) {
    return wrong(claimed, fmt::format("position {} left, which always stays", claimed));
  }
  if (!departure.eviction.is_scored()) {
    return wrong(claimed, fmt::format("position {} left rather than {}", claimed, own));
  }
  return std::nullopt;
}

Choice judge_scored(const Departure& departure, int64_t claimed, const Positions& positions,
                    const std::optional<Fault>& fault) {
  if (!fault) return {claimed, true, true};
  const int64_t better = positions[static_cast<size_t>(fault->better)],
                chosen = positions[static_cast<size_t>(fault->chosen)];
  const double apart = std::abs(fault->excess());
  const std::string note = fmt::format(
      "position {} stayed rather than {}, by {}: {:.9g} against {:.9g}, which are {:.3g} apart; both error bounds together are {:.3g}",
      chosen, better, fault->by, fault->chosen_score, fault->better_score, apart, fault->band);
  return {claimed, true, false, false, wrong_choice(departure.at, claimed, chosen, note, apart, fault->band)};
}

}  // namespace kvbound::sim
