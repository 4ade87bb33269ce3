// What `check` finds out about a kernel's results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/diff/claims/declared_arithmetic.hpp>
#include <kvbound/sim/diff/dump_rows.hpp>

namespace kvbound::sim {

/// One number that is said of the results beside what their tensors show: {"rows wrong", 3}.
struct CheckFigure {
  std::string name;
  int64_t value = 0;
};

/// A tensor's rows, and where those of each case begin.
struct CheckedRows {
  std::string tensor;
  JudgedRows rows;
  std::vector<int64_t> begins;  ///< [cases + 1]
  std::string unit = {};        ///< rows in another one are not compared
};

/// A layer's results, which are compared as those of a dump.
struct CheckedLayer {
  LayerShape shape;
  JudgedClaims claims;
};

/// What other kernels' results of the same inputs are compared with, case by case: a sequence of `attention`,
/// a row of `topk`, all that a file of the others holds.
struct CheckCases {
  std::string name;                 ///< of one case: "sequence"
  std::vector<std::string> inputs;  ///< [cases]: InputDigest of what each was computed from
  std::vector<CheckedRows> rows = {};
  std::optional<CheckedLayer> layer = {};  ///< of `scores` and `merge`, in place of rows
};

struct CheckResult {
  std::vector<TensorAgreement> tensors;
  std::optional<DeclaredArithmetic> declared;  ///< none where no arithmetic matters
  std::vector<CheckFigure> figures = {};
  std::optional<CheckCases> cases = {};  ///< none where every result is exact
};

/// The rows of a tensor that was judged.
///
/// extents  of the rows: the tensor's leading dimensions
/// begins   CheckedRows::begins
CheckedRows checked_rows(RealClaim claim, const TensorAgreement& found, std::vector<int64_t> extents,
                         std::vector<int64_t> begins);

}  // namespace kvbound::sim
