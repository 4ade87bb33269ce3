#include "figure.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/options/magnitude.hpp>
#include <kvbound/sim/options/number.hpp>

#include "table.hpp"

namespace kvbound::sim {
namespace {

constexpr double kLargestExact = 9'007'199'254'740'992;  // 2^53: integers up to here are exact

std::string plain(std::string_view text) {
  std::string letters;
  for (const char c : text) {
    letters += c == '_' || c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

}  // namespace

bool is_not_zero(std::string_view cell) { return cell != "0" && cell != "-"; }

std::string cell_text(const Figure& figure, double number) {
  if (std::isnan(number)) return "-";
  switch (figure.format) {
    case Format::count:
      return fmt::format("{:.0f}", number);
    case Format::share:
      return fmt::format("{:.1f} %", 100 * number);
    case Format::duration:
      return duration_text(number);
    case Format::memory:
      return memory_text(number);
    case Format::number:
    case Format::text:
      break;
  }
  return cell(number);
}

std::string number_text(const Figure& figure, double number) {
  if (!std::isfinite(number)) return "";
  if (figure.format == Format::count && std::abs(number) <= kLargestExact)
    return fmt::format("{}", static_cast<int64_t>(number));
  return shortest(number);
}

bool is_named(const Figure& figure, std::string_view text) {
  const std::string wanted = plain(text);
  return wanted == plain(figure.name) || wanted == plain(figure.heading);
}

}  // namespace kvbound::sim
