// Compares a tested implementation's recorded results of one layer with the double-precision reference, element by
// element, within derived bounds.
//
// Teacher-forced replay: the kept set is judged by the reference's scores. Every later eviction is judged by the
// reference's scores on the cache that the tested implementation's own earlier choices produced, and all later numbers
// are compared on that cache. A choice that rounding explains therefore has no consequences for what follows, and a
// choice that rounding does not explain is reported once.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/traces/trace.hpp>

#include "claims.hpp"
#include "comparison.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

/// How one tensor of one layer compares with the reference.
struct JudgedTensor {
  int64_t layer = 0;
  TensorAgreement agreement;
};

/// Judges all claimed tensors of one layer.
///
/// Kept sets are judged by the near-tie rule (near_tie.hpp). With `theta-sweep` the bound of the claimed selection is
/// judged instead: it may exceed the bound of the reference's selection by at most the sum of both errors. With
/// `greedy` any set other than the reference's is undecided (kept_agreement.hpp). Positions must ascend, lie within the
/// prompt and include the always-kept ones, and their number must equal the budget; with `adakv`, the head's own budget
/// (allocation_agreement.hpp). Where no kept set is claimed, or the claimed list is not a set of prompt positions, the
/// reference's kept set is used from there on.
///
/// Evictions are judged as evicted_agreement.hpp says. Where a host evicts and no evictions are claimed, the replay
/// evicts the reference's own choice on the tested implementation's cache.
///
/// claims   shapes as in a dump of this trace; DumpFile checks them
/// returns  one agreement for each claimed tensor, in the order of dump_tensors()
/// throws   NonFinite if the trace's numbers are too large for double precision
std::vector<TensorAgreement> agreement(const traces::Layer& layer, const TestedImplementation& implementation,
                                       const LayerClaims& claims);

}  // namespace kvbound::sim
