// Compares a tested implementation's recorded results of one layer with the double-precision reference,
// element by element, within derived bounds.
//
// Teacher-forced replay: the kept set is judged by the reference's scores. Every later eviction is judged by
// the reference's scores on the cache that the tested implementation's own earlier choices produced, and all
// later numbers are compared on that cache. A choice that rounding explains therefore has no consequences for
// what follows, and a choice that rounding does not explain is reported once.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/diff/claims/followed_choices.hpp>
#include <kvbound/sim/diff/claims/tested_implementation.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// How one tensor of one layer compares with the reference.
struct JudgedTensor {
  int64_t layer = 0;  ///< negative: of no layer
  TensorAgreement agreement;
};

/// How the claims of one layer compare with the reference, and the choices that later ones were judged on.
struct JudgedLayer {
  std::vector<TensorAgreement> tensors;  ///< one for each claimed tensor, in the order of dump_tensors()
  FollowedChoices choices;
};

/// Judges all claimed tensors of one layer.
///
/// Kept sets are judged by the near-tie rule (judge/near_tie.hpp), with `theta-sweep` as the best of the
/// selections that it compares (judge/swept_selections.hpp). With `greedy` any set other than the reference's
/// is undecided (judge/kept_sets.hpp). Positions must ascend, lie within the prompt and include the
/// always-kept ones, and their number must equal the budget; with `adakv`, the head's own budget
/// (judge/allocation.hpp). Where no kept set is claimed, or the claimed list is not a set of prompt
/// positions, the reference's kept set is used from there on.
///
/// Evictions, merges, and all numbers of decode steps are judged as replay/layer_replay.hpp says.
///
/// claims   shapes as in a dump of this trace; DumpFile checks them
/// throws   NonFinite if the trace's numbers are too large for double precision
JudgedLayer judge_layer(const traces::Layer& layer, const TestedImplementation& implementation,
                        const LayerClaims& claims);

/// The tensors of judge_layer.
std::vector<TensorAgreement> agreement(const traces::Layer& layer, const TestedImplementation& implementation,
                                       const LayerClaims& claims);

}  // namespace kvbound::sim
