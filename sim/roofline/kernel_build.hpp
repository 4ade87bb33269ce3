// What nvcc made of a kernel: cuda/resources.txt and cuda/instructions.txt, as they were
// when this program was built.
#pragma once

#include <optional>
#include <string_view>

namespace kvbound::sim {

/// Of sm_90a.
struct KernelBuild {
  int registers = 0;  ///< of a thread
  /// Instructions for one that the emulation counts (a product, an access to memory, a shuffle, a
  /// special function, a barrier, an atomic), in all, on the integer units, conversions included,
  /// and in double precision.
  double instructions = 1;
  double integers = 0;
  double doubles = 0;
};

/// nullopt for a kernel that the tables do not know, such as a test's.
std::optional<KernelBuild> kernel_build(std::string_view kernel);

}  // namespace kvbound::sim
