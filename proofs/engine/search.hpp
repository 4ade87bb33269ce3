// An adversary: looks for the instance on which a theorem is tightest, or false.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "theorem.hpp"

namespace kvbound::proofs {

/// The instance of largest ratio that a search has found.
struct Tightest {
  Instance instance;
  double ratio = 0;
  int64_t evaluations = 0;
  std::optional<std::string> failure;  ///< that of the theorem, if the search met one
};

/// Climbs towards instances of large ratio, from random ones, until `seconds` have passed or the theorem fails;
/// the last tenth of the time makes the tightest one simpler.
///
/// Repeatable but for the time: the seed decides what is tried, the machine how much of it.
///
/// theorem   has a ratio
/// progress  called with the seconds passed and the largest ratio so far, if given
Tightest search_tightest(const Theorem& theorem, double seconds, uint64_t seed,
                         const std::function<void(double, double)>& progress = {});

}  // namespace kvbound::proofs
