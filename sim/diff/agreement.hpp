// Compares what was recorded of a layer with the double reference, element by element, within derived bounds.
//
// Teacher-forced replay: the kept set is compared with the reference's scores, and so is the entry evicted at every
// step, on the cache that the tested implementation's own earlier choices produced; all later numbers are compared on
// that cache. A choice that rounding explains costs nothing afterwards, and one that it does not explain is reported
// once.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/traces/trace.hpp>

#include "claims.hpp"
#include "comparison.hpp"
#include "tested_implementation.hpp"

namespace kvbound::sim {

/// One tensor of one layer.
struct JudgedTensor {
  int64_t layer = 0;
  TensorAgreement agreement;
};

/// Judges one layer.
///
/// A kept set is judged by the near-tie rule (near_tie.hpp): with `theta-sweep` by its bound, which may exceed the
/// reference's by no more than both errors; with `greedy` a set that is not the reference's is undecided
/// (kept_agreement.hpp). Its positions must ascend, be of the prompt, include the always-kept ones and be as many as
/// the budget, with `adakv` as the head's own (allocation_agreement.hpp); one that is no set of the prompt's positions
/// is replaced by the reference's own from there on, as is one that is not claimed. Evictions: evicted_agreement.hpp; where
/// a host evicts and nothing of that is claimed, the reference's own choice on the tested implementation's cache
/// leaves.
///
/// claims   shapes as in a dump of this trace, which dump_file.hpp sees to
/// returns  what was claimed, in the order of dump_tensors()
/// throws   NonFinite if the trace's numbers are too large for double precision
std::vector<TensorAgreement> agreement(const traces::Layer& layer, const TestedImplementation& implementation,
                                       const LayerClaims& claims);

}  // namespace kvbound::sim
