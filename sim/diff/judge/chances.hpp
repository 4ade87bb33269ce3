// How unlikely it is that rounding alone moved outputs so far: single rows, and sums over rows
// that show what no row does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <kvbound/reference/bounds/functionals.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

namespace kvbound::sim {

/// A functional of one row, or the sum over several.
struct ChanceRow {
  double by = 0;                      ///< <w, o^ - o>
  double size = 0;                    ///< <w, w>
  reference::ChanceError error = {};  ///< of `by`
  int64_t rows = 0;

  void add(const ChanceRow& other);
};

/// The row of a direction w and a claimed output o^, whose stored numbers are rounded by themselves; none (0
/// rows) where there is no bound.
///
/// direction, claimed  [head_dim]
ChanceRow chance_row(const reference::OutputFunctionals& expected, VectorView direction, VectorView claimed,
                     Dtype storage);

/// The tests of one functional: of every row, of the sums over all rows of a head, over all of a step, and
/// over all, as far as they are of several rows. Adds for each of the four kinds the one that is farthest
/// beyond what rounding does by chance.
///
/// rows   [steps, heads]: rows without a bound, or of size 0, count in no test
void add_tests(const std::string& functional, const std::vector<ChanceRow>& rows, int64_t heads,
               ChanceTests& tests);

}  // namespace kvbound::sim
