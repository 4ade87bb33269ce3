// The random choices of a schedule.
#pragma once

#include <bit>
#include <cstdint>

namespace kvbound::cuda::emulation {

/// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int bound) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(bound) >> 32); }
  /// A random member of the set.
  int of(unsigned set) {
    for (int skipped = below(std::popcount(set)); skipped > 0; --skipped) set &= set - 1;
    return std::countr_zero(set);
  }

 private:
  uint64_t state_;
};

}  // namespace kvbound::cuda::emulation
