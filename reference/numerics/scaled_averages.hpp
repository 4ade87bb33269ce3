// Moving averages of numbers whose logarithms are known, without overflow or underflow.
#pragma once

#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// Averages S_j = mantissas[j] exp(exponents[j]). A mantissa is between about 2^-64 and 2, or 0 with the
/// exponent -infinity for an average to which no number was added yet.
struct ScaledAverages {
  std::vector<double> exponents;
  std::vector<double> mantissas;

  /// Appends an empty average, S = 0.
  void append();
};

/// Updates the first `count` averages with new numbers.
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
