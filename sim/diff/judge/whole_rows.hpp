// Judges rows of scores, norms, votes, and merged keys and values as wholes, by the bounds of their elements.
//
// Derived in reference/bounds/functionals.md, "Elements' bounds" and "Merged entries".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

namespace kvbound::sim {

/// The directions in which a row is judged, its gain's and its difference's: x and x^ - x. None
/// if a number is not finite.
///
/// expected, claimed  x, x^ [columns]
std::vector<std::vector<double>> judged_directions(VectorView expected, VectorView claimed);

/// A row of a tensor.
struct WholeRow {
  int64_t first = 0, count = 0;  ///< its elements, in C order of the tensor
  std::vector<int64_t> index =
      {};  ///< in the tensor; of rows that are part of a dimension, that of the first element
  /// Of judged_directions: by how much bounds stay below those of the elements together; empty: by nothing.
  std::vector<double> savings = {};
};

/// The rows of a tensor whose last dimension is inside of them.
std::vector<WholeRow> rows_of(const RealClaim& claim);

/// What is judged of a tensor's elements, [elements] each.
struct JudgedElements {
  const RealClaim& claim;
  VectorView expected, bounds;
  std::vector<bool> certain = {};  ///< empty: all are
};

/// Adds to the agreement of a tensor's elements that of its rows as wholes, their gain and their difference.
/// Elements that are uncertain or have no bound are left out, and so are rows of zeros and those that hold a
/// number that is not finite. If the tensor differs and one factor explains all rows that do, within the same
/// bounds, the agreement says so.
///
/// numbers  what the elements are, in the plural
void judge_rows(const JudgedElements& elements, const std::vector<WholeRow>& rows, const std::string& numbers,
                TensorAgreement& agreement);

}  // namespace kvbound::sim
