// Exact decimal numbers: options typed as 2.5% or alpha=0.3 must not be rounded to binary fractions.
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
inline constexpr int kDecimalPlaces = 36;  // 10^38 < 2^127

constexpr Wide power_of_ten(int exponent) {
  Wide power = 1;
  while (exponent-- > 0) power *= 10;
  return power;
}
}  // namespace detail

/// floor(factor * count / 10^shift), exactly. count >= 0; 0 <= shift <= 2.
inline int64_t floor_of_product(Decimal factor, int64_t count, int shift = 0) {
  assert(count >= 0 && 0 <= shift && shift <= 2);
  const detail::Wide product = static_cast<detail::Wide>(factor.digits) * count;
  return static_cast<int64_t>(product / detail::power_of_ten(factor.places + shift));
}

/// number > limit, exactly. limit >= 0
inline bool exceeds(Decimal number, int64_t limit) {
  return static_cast<detail::Wide>(number.digits) / detail::power_of_ten(number.places) > limit ||
         (floor_of_product(number, 1) == limit && number.places > 0);
}

/// Parses digits, or digits, a point and digits ("20", "2.5", "0.125"), with at most 18 significant digits
/// and 36 decimal places. nullopt for any other text, also for one with a sign or an exponent.
inline std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal result;
  bool point = false;
  bool any = false;
  int significant = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !point && i > 0 && i + 1 < text.size()) {
      point = true;
    } else if ('0' <= c && c <= '9' && significant < detail::kDecimalDigits &&
               result.places < detail::kDecimalPlaces) {
      result.digits = result.digits * 10 + (c - '0');
      result.places += point ? 1 : 0;
      significant += result.digits > 0 ? 1 : 0;
      any = true;
    } else {
      return std::nullopt;
    }
  }
  if (!any) return std::nullopt;
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
