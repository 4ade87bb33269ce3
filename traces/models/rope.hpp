// Rotary position embedding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model_config.hpp"

namespace kvbound::traces {

/// Rotates pairs (a, b) of a head's numbers by angles that grow with the position p:
///
///     (a, b) <- (a cos p f_i - b sin p f_i,  a sin p f_i + b cos p f_i),   f_i = base^(-2 i / head_dim)
///
/// with the i-th pair as RopePairing says and f_i scaled as RopeConfig says. Angles, sines and cosines are
/// formed in double precision, each product and sum is rounded to single.
class Rope {
 public:
  /// divisors  [head_dim / 2], by which the frequencies are divided, too; empty: by 1
  Rope(const RopeConfig& config, int64_t head_dim, std::span<const float> divisors);

  /// cosines, sines  [head_dim / 2]
  void angles(int64_t position, std::span<float> cosines, std::span<float> sines) const;
  /// numbers  [head_dim]
  void rotate(std::span<float> numbers, std::span<const float> cosines, std::span<const float> sines) const;

  const std::vector<double>& frequencies() const { return frequencies_; }

 private:
  RopePairing pairing_;
  std::vector<double> frequencies_;  // [head_dim / 2]
};

}  // namespace kvbound::traces
