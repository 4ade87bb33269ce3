// `check OPERATION A --against B`: two kernels' results of the same inputs, row by row.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/sim/diff/dump_rows.hpp>

#include "check_result.hpp"

namespace kvbound::sim {

/// Which cases of A and of B were computed from the same inputs.
struct SharedCases {
  std::vector<std::pair<int64_t, int64_t>> pairs;  ///< ascending
  std::vector<int64_t> only_a, only_b;             ///< ascending
};

/// Pairs of the same number, if their inputs are the same; the others with the first of the other file that
/// has their inputs. So a batch of many sequences has its counterpart of one of them alone, whichever it is.
///
/// a, b  CheckCases::inputs
SharedCases shared_cases(const std::vector<std::string>& a, const std::vector<std::string>& b);

struct CheckComparison {
  SharedCases cases;
  LayerRows rows;
};

/// a, b  of one operation that has cases
CheckComparison compare_results(const CheckResult& a, const CheckResult& b);

}  // namespace kvbound::sim
