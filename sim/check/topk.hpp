// `check topk`: the entries that a top-k kernel selected.
#pragma once

#include <cstdint>
#include <functional>

#include "check_file.hpp"
#include "check_result.hpp"

namespace kvbound::sim {

/// Judges `indices`: the set is the contract, its order only with order=descending.
///
/// scores       [rows, n] F16, BF16, F32, F64; NaN is refused, infinities are ordered
/// indices      [rows, k] I32, I64; -1: no entry, only behind the last one
/// lengths      [rows] I32, I64, optional: of each row the first so many scores count; otherwise n
/// score_error  option, or tensor [rows, n]: how far each score that the kernel saw may be
///              from the one given here; 0
/// order        any or descending
///
/// A row is right if its indices are min(k, length) different ones below its length, and no entry that is
/// left out exceeds one that is in by more than both errors. Ties may so be settled in any way; those settled
/// otherwise than by the smaller index are counted.
///
/// progress  called with the rows done, and all
/// throws    TraceError
CheckResult check_topk(CheckFile& file, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace kvbound::sim
