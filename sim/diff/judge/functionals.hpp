// Judges claimed outputs as a whole: their gain, a factor of their logits, their
// difference from the reference's.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/bounds/functionals.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

#include "chances.hpp"
#include "row_functionals.hpp"

namespace kvbound::sim {

/// The functionals of one tensor of attention outputs, each row the output of one query of one query head.
class OutputFunctionalsJudge {
 public:
  /// claim  [..., head_dim]; must outlive the object
  explicit OutputFunctionalsJudge(const RealClaim& claim);

  /// Judges one claimed row; for different rows on any threads. Rows that are not added are not judged, nor
  /// are those that hold a number that is not finite.
  void add(int64_t row, const reference::OutputFunctionals& expected);

  /// One for each functional; none if no row was judged. Rows without a bound count as rows only.
  std::vector<FunctionalAgreement> agreements() const;
  /// Whether an added row differs: one of its elements, or its output as a whole, is beyond its bound.
  bool differs(int64_t row) const { return rows_[row].differs; }
  /// How unlikely their deviations are by chance.
  ChanceTests chances() const;

 private:
  struct Row {
    bool judged = false, differs = false;
    MovedRow gain, scale, difference;
  };

  FunctionalAgreement agreement(const char* name, MovedRow Row::*functional) const;

  const RealClaim& claim_;
  int64_t head_dim_;
  std::vector<Row> rows_;
  std::vector<ChanceRow> gain_by_chance_, scale_by_chance_;  // [rows]
};

}  // namespace kvbound::sim
