// What of a dump's outputs rounding hardly explains, though it might: all within their bounds, but beyond
// what roundings do that are independent of each other (reference/bounds/functionals.md, "By chance").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agreement.hpp"

namespace kvbound::sim {

/// One row, or one sum over rows.
struct UnlikelyOutput {
  const JudgedTensor* tensor = nullptr;
  const ChanceTest* test = nullptr;
  double band =
      0;  ///< the factor is within 1 -+ band but for a probability of ChanceVerdict::kFailure in all
  int probability = 0;  ///< of any test of the dump being so far off: below 10 to this power
  std::string
      explained_by;    ///< the first of undeclared_roundings() with which it is likely; empty if none is
  int64_t others = 0;  ///< layers whose tensor of that name is unlikely, too
};

/// The verdict by chance on all tensors of a dump that do not differ from the reference's.
struct ChanceVerdict {
  static constexpr double kFailure = 1e-9;  ///< probability that a sound dump is found unlikely

  /// tensors  must outlive the object
  explicit ChanceVerdict(const std::vector<JudgedTensor>& tensors);

  int64_t tests = 0;
  double deviations = 0;  ///< beyond which one of so many tests is unlikely
  /// For each name of a tensor the one that is most unlikely, in the order of the tensors.
  std::vector<UnlikelyOutput> found;
};

/// "layers.0.output[3, 5]: logit scale 1.0300 is unlikely by rounding (0.9998 to 1.0002; probability below
/// 1e-12); weights of 16 bits (FP16) would explain it"
std::string text_of(const UnlikelyOutput& unlikely);

/// "[3, 5]"; "[:, 5]": of all steps together.
std::string index_text(const ChanceTest& test);

}  // namespace kvbound::sim
