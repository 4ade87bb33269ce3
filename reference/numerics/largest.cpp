#include "largest.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include <kvbound/reference/core/infinity.hpp>

#include "instruction_set.hpp"

namespace kvbound::reference {
namespace {

// Updates the lanes' running maxima, and the sums of x - x that are NaN after a number that is not finite.
template <class L>
[[gnu::always_inline]] inline void add_to_largest(const double* numbers,
                                                  typename L::Reals (&largest)[L::kVectors],
                                                  typename L::Sums& poison) {
  for (size_t v = 0; v < L::kVectors; ++v) {
    typename L::Reals x;
    L::load(numbers + v * L::kWidth, x);
    largest[v] = x > largest[v] ? x : largest[v];
    poison.parts[v] += x - x;
  }
}

}  // namespace

Largest largest(VectorView numbers) {
  Largest result;
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Reals most[L::kVectors];
        for (auto& part : most) part = typename L::Reals{} + -kInfinity;
        typename L::Sums poison;
        const size_t whole = numbers.size() / kLanes * kLanes;
        for (size_t i = 0; i < whole; i += kLanes) add_to_largest<L>(numbers.data() + i, most, poison);
        double rest[kLanes];  // padded with a number of the input
        std::fill_n(rest, kLanes, numbers.front());
        std::copy(numbers.begin() + static_cast<std::ptrdiff_t>(whole), numbers.end(), rest);
        add_to_largest<L>(rest, most, poison);
        double candidates[kLanes];
        for (size_t v = 0; v < L::kVectors; ++v) L::store(most[v], candidates + v * L::kWidth);
        result = {*std::max_element(candidates, candidates + kLanes), poison.total()};
      });
  return result;
}

double largest_of(VectorView numbers) {
  double result = -kInfinity;
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Reals most[L::kVectors];
        for (auto& part : most) part = typename L::Reals{} + -kInfinity;
        size_t j = 0;
        for (; j + kLanes <= numbers.size(); j += kLanes) {
          for (size_t v = 0; v < L::kVectors; ++v) {
            typename L::Reals x;
            L::load(numbers.data() + j + v * L::kWidth, x);
            most[v] = x > most[v] ? x : most[v];
          }
        }
        double parts[kLanes];
        for (size_t v = 0; v < L::kVectors; ++v) L::store(most[v], parts + v * L::kWidth);
        result = *std::max_element(parts, parts + kLanes);
        for (; j < numbers.size(); ++j) result = std::max(result, numbers[j]);
      });
  return result;
}

bool all_finite(std::span<const float> numbers) {
  constexpr size_t kParts = 32;  // magnitudes whose largest ones are formed side by side
  const auto magnitude = [](float number) __attribute__((always_inline)) {
    return std::bit_cast<uint32_t>(number) & 0x7fffffffu;
  };
  uint32_t most = 0;
  with_widest_instructions([&]() __attribute__((always_inline)) {
    std::array<uint32_t, kParts> own{};
    size_t i = 0;
    for (; i + kParts <= numbers.size(); i += kParts) {
      for (size_t p = 0; p < kParts; ++p) own[p] = std::max(own[p], magnitude(numbers[i + p]));
    }
    for (; i < numbers.size(); ++i) own[0] = std::max(own[0], magnitude(numbers[i]));
    for (size_t half = kParts / 2; half > 0; half /= 2) {
      for (size_t p = 0; p < half; ++p) own[p] = std::max(own[p], own[p + half]);
    }
    most = own[0];
  });
  return most < 0x7f800000u;
}

}  // namespace kvbound::reference
