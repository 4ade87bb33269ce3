// How rows of a tensor compare as wholes, by one functional.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

namespace kvbound::sim {

/// <w, x^ - x> of one row x, its bound, and <w, w> or what else the functional is a share of.
struct MovedRow {
  double by = 0;
  double bound = 0;
  double size = 0;

  bool is_outside() const;  ///< never without a bound
};

/// By how much roundings in double precision move <w, x^ - x>, a sum of `count` terms, through
/// one component with |w| = 1.
double adding_error(double claimed, double expected, int64_t count);

/// One row's functional.
struct RowFunctional {
  int64_t first = 0;           ///< its first element, in C order of the tensor
  std::vector<int64_t> index;  ///< in the tensor
  MovedRow moved;
  bool is_judged = false;  ///< whether its gain has a band below 1
};

/// is_factor  whether the functional is a factor, 1 but for rounding; otherwise <x^ - x,
///            x^ - x>, with <x, x> as its size
/// rows       in C order of the tensor
FunctionalAgreement agreement_of(const std::string& name, bool is_factor,
                                 const std::vector<RowFunctional>& rows);

}  // namespace kvbound::sim
