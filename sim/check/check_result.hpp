// What `check` finds out about a kernel's results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/diff/claims/declared_arithmetic.hpp>

namespace kvbound::sim {

/// One number that is said of the results beside what their tensors show: {"rows wrong", 3}.
struct CheckFigure {
  std::string name;
  int64_t value = 0;
};

struct CheckResult {
  std::vector<TensorAgreement> tensors;
  std::optional<DeclaredArithmetic> declared;  ///< none where no arithmetic matters
  std::vector<CheckFigure> figures = {};
};

}  // namespace kvbound::sim
