// Counts what kernels of the counted build do, launch by launch.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kernel_counts.hpp"

namespace kvbound::cuda::counting {

/// Which blocks of a launch run.
struct Sampling {
  /// A launch of more than 16 clusters that would take more instructions of warps than this runs only a
  /// sample, evenly spread over the grid, from which the others are extrapolated: 16, or 32, 64, ... as far
  /// as they take at most so many. What the others would have written stays as it was: new device memory is
  /// then 0 rather than NaN, so that kernels behind it find numbers and valid positions.
  double most_instructions = std::numeric_limits<double>::infinity();
};

/// Counts all launches of its lifetime, of one thread at a time. There is at most one at a time.
class Counting {
 public:
  explicit Counting(const Sampling& sampling = {});
  ~Counting();
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

  /// In the order of the launches.
  std::vector<LaunchCounts> launches() const;
};

/// The kernel's name in cuda/resources.txt, from the mangled name of the type Launch<kernel>.
std::string kernel_name(const char* mangled);

}  // namespace kvbound::cuda::counting
