// Exact decimal numbers: what a person types as 2.5% or alpha=0.3 must not pass through binary fractions.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvbound {

/// digits * 10^-places, digits >= 0. Normalised: no trailing zero behind the point.
struct Decimal {
  int64_t digits = 0;
  int places = 0;

  friend bool operator==(const Decimal&, const Decimal&) = default;
  double value() const;
};

namespace detail {
__extension__ using Wide = __int128;
inline constexpr int kDecimalDigits = 18;  // 10^18 < 2^63, and 10^18 * 2^63 < 2^127

constexpr int64_t power_of_ten(int exponent) {
  int64_t power = 1;
  while (exponent-- > 0) power *= 10;
  return power;
}
}  // namespace detail

/// floor(factor * count / 10^shift), exactly. count >= 0; factor.places + shift <= 18.
inline int64_t floor_of_product(Decimal factor, int64_t count, int shift = 0) {
  assert(count >= 0 && factor.places + shift <= detail::kDecimalDigits);
  const detail::Wide product = static_cast<detail::Wide>(factor.digits) * count;
  return static_cast<int64_t>(product / detail::power_of_ten(factor.places + shift));
}

/// Reads digits, or digits and a point and digits ("20", "2.5", "0.125"); nothing else, no sign, no exponent,
/// at most 16 digits. nullopt if the text is anything else.
inline std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal result;
  bool point = false;
  int count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !point && i > 0 && i + 1 < text.size()) {
      point = true;
    } else if ('0' <= c && c <= '9' && count < detail::kDecimalDigits - 2) {
      result.digits = result.digits * 10 + (c - '0');
      result.places += point ? 1 : 0;
      ++count;
    } else {
      return std::nullopt;
    }
  }
  if (count == 0) return std::nullopt;
  while (result.places > 0 && result.digits % 10 == 0) {
    result.digits /= 10;
    --result.places;
  }
  return result;
}

/// The shortest text that parse_decimal reads back as the same number.
inline std::string to_string(Decimal number) {
  std::string text = std::to_string(number.digits);
  if (number.places == 0) return text;
  if (static_cast<int>(text.size()) <= number.places) {
    text.insert(0, static_cast<size_t>(number.places) + 1 - text.size(), '0');
  }
  return text.insert(text.size() - static_cast<size_t>(number.places), ".");
}

inline double Decimal::value() const {
  return static_cast<double>(digits) / static_cast<double>(detail::power_of_ten(places));
}

}  // namespace kvbound
