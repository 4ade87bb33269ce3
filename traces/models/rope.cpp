#include "rope.hpp"

#include <cmath>
#include <numbers>

#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::traces {
namespace {

// Llama 3.1's change of a frequency.
double scaled(double frequency, const Llama3Scaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(scaling.original_context);
  if (wavelength < context / scaling.high) return frequency;
  if (wavelength > context / scaling.low) return frequency / scaling.factor;
  const double kept = (context / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

Rope::Rope(const RopeConfig& config, int64_t head_dim, std::span<const float> divisors)
    : pairing_(config.pairing), frequencies_(head_dim / 2) {
  if (!divisors.empty()) {
    require_equal("divisors of frequencies", std::ssize(divisors), "half of head_dim", head_dim / 2);
  }
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double& frequency = frequencies_[i];
    frequency = std::pow(config.base, -2 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (config.llama3) frequency = scaled(frequency, *config.llama3);
    frequency /= config.linear_factor;
    if (!divisors.empty()) frequency /= double{divisors[i]};
  }
}

void Rope::angles(int64_t position, std::span<float> cosines, std::span<float> sines) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

void Rope::rotate(std::span<float> numbers, std::span<const float> cosines,
                  std::span<const float> sines) const {
  const size_t half = frequencies_.size();
  const bool halves = pairing_ == RopePairing::halves;
  for (size_t i = 0; i < half; ++i) {
    float& one = numbers[halves ? i : 2 * i];
    float& other = numbers[halves ? i + half : 2 * i + 1];
    const float a = one, b = other;
    one = a * cosines[i] - b * sines[i];
    other = a * sines[i] + b * cosines[i];
  }
}

}  // namespace kvbound::traces
