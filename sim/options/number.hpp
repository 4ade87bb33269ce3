// Numbers as text: parsed only if the whole text is one number, and printed in the
// shortest form that reads back.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <kvbound/traces/number_in.hpp>

namespace kvbound::sim {

/// An integer in decimal digits with an optional minus sign; nullopt for anything else, or outside 64 bits.
inline std::optional<int64_t> parse_integer(std::string_view text) {
  return traces::number_in<int64_t>(text);
}

/// A finite real number, such as 0.5 or 1e-4; nullopt for anything else.
inline std::optional<double> parse_real(std::string_view text) {
  const auto number = traces::number_in<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

/// The shortest text that reads back as the same number: 0.5, 1e-4, 12. Exponents are not padded.
inline std::string shortest(double number) {
  if (std::isnan(number)) return "nan";  // whose sign says nothing
  const auto print = [number](std::chars_format format) {
    char buffer[400];
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, number, format).ptr);
  };
  const std::string fixed = print(std::chars_format::fixed);
  std::string scientific = print(std::chars_format::scientific);
  const size_t exponent = scientific.find('e');
  if (exponent != std::string::npos) {
    std::string digits = scientific.substr(exponent + 2);
    digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
    const bool negative = scientific[exponent + 1] == '-';
    scientific = scientific.substr(0, exponent + 1) + (negative ? "-" : "") + digits;
  }
  return scientific.size() < fixed.size() ? scientific : fixed;
}

/// A number of ordinary size with so many digits behind the point, a larger one with three
/// in all: 0.985, 1.02e+300.
inline std::string with_places(double number, int places) {
  constexpr double kMost = 1e6;
  return std::abs(number) < kMost ? fmt::format("{:.{}f}", number, places) : fmt::format("{:.3g}", number);
}

/// How many digits behind the point show numbers that are so far from another: three, or more.
inline int places_of(double distance) {
  const double places = std::ceil(-std::log10(distance));  // infinite for 0
  return places > 3 ? static_cast<int>(std::min(places, 12.0)) : 3;
}

/// A factor with three digits behind the point, or as many as tell it from 0 and 1: 0.985, 1.0003, 0.0002.
inline std::string factor_text(double factor) {
  for (int places = 3; places < 12; ++places) {
    std::string text = with_places(factor, places);
    const double rounded = *traces::number_in<double>(text);
    if ((rounded != 0 || factor == 0) && (rounded != 1 || factor == 1)) return text;
  }
  return shortest(factor);
}

}  // namespace kvbound::sim
