// An adversarial search for the instance on which a theorem is tightest, or false.
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
  std::optional<std::string> failure;  ///< the theorem's failure, if the search found one
};

/// Climbs from random instances towards instances of large ratio until `seconds` have passed or the theorem
/// fails. The last tenth of the time simplifies the tightest instance.
///
/// The seed determines the sequence of instances; the speed of the machine determines its length.
///
/// theorem   one with a ratio
/// progress  called with the seconds passed and the largest ratio so far, if given
Tightest search_tightest(const Theorem& theorem, double seconds, uint64_t seed,
                         const std::function<void(double, double)>& progress = {});

}  // namespace kvbound::proofs
