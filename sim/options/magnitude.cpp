#include "magnitude.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "number.hpp"

namespace kvbound::sim {
namespace {

struct Rounded {
  double number = 0;
  int exponent = 0;  // decimal exponent of the first digit
};

// Rounds to three significant digits.
Rounded rounded(double number) {
  const std::string text = fmt::format("{:.2e}", number);
  const size_t e = text.find('e');
  const std::string_view exponent = std::string_view(text).substr(e + (text[e + 1] == '+' ? 2 : 1));
  return {parse_real(text).value(), static_cast<int>(parse_integer(exponent).value())};
}

// Exactly three significant digits, including trailing zeros: 0.0208, 43.9, 118. Larger numbers end in zeros.
std::string three_digits(double number) {
  const Rounded near = rounded(number);
  return fmt::format("{:.{}f}", near.number, std::max(0, 2 - near.exponent));
}

}  // namespace

std::string duration_text(double seconds) {
  struct Unit {
    const char* name;
    double seconds;
  };
  constexpr Unit kUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  const double near = rounded(seconds).number;  // 999.7 us are 1.00 ms
  const auto unit = std::ranges::find_if(kUnits, [&](const Unit& u) { return near >= u.seconds; });
  const Unit& best = unit == std::end(kUnits) ? *std::prev(unit) : *unit;
  return fmt::format("{} {}", three_digits(near / best.seconds), best.name);
}

std::string memory_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; rounded(bytes).number >= 1000 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::string rate_text(double per_second, std::string_view unit) {
  if (unit == "FLOP" || unit == "bytes") {
    const bool trillions = rounded(per_second).number >= 1e12;
    return fmt::format("{} {}{}/s", three_digits(per_second * (trillions ? 1e-12 : 1e-9)),
                       trillions ? "T" : "G", unit == "FLOP" ? unit : "B");
  }
  const bool millions = rounded(per_second).number >= 1e6;
  return fmt::format("{}{} {}/s", three_digits(millions ? per_second * 1e-6 : per_second),
                     millions ? " million" : "", unit);
}

}  // namespace kvbound::sim
