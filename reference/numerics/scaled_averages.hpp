// Moving averages of numbers whose logarithms are known, without overflow or underflow.
#pragma once

#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// Averages S_j = mantissas[j] exp(exponents[j]). A mantissa is 0 (then the exponent is -infinity: nothing was added yet) or
/// about 2^-64 to 2.
struct ScaledAverages {
  std::vector<double> exponents;
  std::vector<double> mantissas;

  /// One more, of which nothing is known yet.
  void append();
};

/// The first averages move towards new numbers.
///
///     S_j <- decay S_j + (1 - decay) exp(log_numbers[j])
///
/// decay        0 <= decay < 1
/// log_numbers  [count], natural log; count at most the number of averages
/// scratch      at least count numbers, overwritten
/// returns      false, with nothing changed, if a logarithm is NaN or infinite
[[nodiscard]] bool decay_towards(VectorView log_numbers, double decay, ScaledAverages& averages,
                                 std::span<double> scratch);

}  // namespace kvbound::reference
