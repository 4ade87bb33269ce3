#include "selection.hpp"

#include <kvbound/proofs/oracle/exact.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>

namespace kvbound::proofs {

using Positions = std::vector<int64_t>;

void hold_selection(const Instance& instance, const oracle::Row& scores, const Positions& exact_choice,
                    const Positions& choice, Outcome& outcome) {
  outcome.reference_holds("selects as many entries", exact_choice.size() == choice.size());
  outcome.reference_holds("selects each of them once, ascending", oracle::is_ascending(choice));
  if (!oracle::is_ascending(choice)) return;
  for (const int64_t missed : exact::difference(exact_choice, choice)) {
    for (const int64_t taken : exact::difference(choice, exact_choice)) {
      const oracle::Bounded &better = scores[missed], &worse = scores[taken];
      const std::string pair = std::to_string(taken) + " rather than " + std::to_string(missed);
      outcome.reference_holds("cannot tell their scores apart where it selects " + pair,
                              better.value - worse.value <= better.bound + worse.bound);
      outcome.reference_holds("the smaller index wins between equal tokens where it selects " + pair,
                              !twins(instance, taken, missed) || taken < missed);
    }
  }
}

Positions computed_choice(const Instance& instance, const std::vector<double>& stage_two_scores) {
  std::vector<double> certain(instance.tokens(), 0.0);
  for (const int64_t i : instance.stage_one) certain[i] = 1;
  return reference::select_critical(certain, stage_two_scores, std::ssize(instance.kept),
                                    std::ssize(instance.stage_one))
      .selected;
}

}  // namespace kvbound::proofs
