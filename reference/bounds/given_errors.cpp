#include "given_errors.hpp"

#include <algorithm>
#include <cmath>

namespace kvbound::reference {
namespace {

constexpr double kSingle = 0x1p-24, kDouble = 0x1p-53;  // units of the two precisions

double given_error(double number, const Arithmetic& arithmetic) {
  const double size = std::abs(number);
  if (arithmetic.unit <= kDouble) return 0;
  if (size < arithmetic.smallest) return size;  // it may be flushed to 0
  const bool is_single = arithmetic.unit <= kSingle && static_cast<float>(number) == number;
  return is_single ? 0 : arithmetic.unit * size;
}

}  // namespace

Matrix given_errors(MatrixView given, const Arithmetic& arithmetic) {
  Matrix errors(given.rows, given.cols);
  for (int64_t r = 0; r < given.rows; ++r) {
    std::ranges::transform(given.row(r), errors.row(r).begin(),
                           [&](double number) { return given_error(number, arithmetic); });
  }
  return errors;
}

}  // namespace kvbound::reference
