#include "plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

constexpr int kWidth = 40;  // characters of the longest bar

// A bar of this share of the width, in eighths of a character.
std::string blocks(double share) {
  constexpr std::array kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::lround(share * kWidth * 8));
  std::string bar;
  for (int full = 0; full < eighths / 8; ++full) bar += "█";
  return bar + kEighths[eighths % 8];
}

std::string plain_bar(double share) {
  return std::string(static_cast<size_t>(std::lround(share * kWidth)), '#');
}

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
};

Range range_of(const CellMap& cells) {
  Range range;
  for (const double value : cells.values) {
    if (!std::isfinite(value)) continue;
    range = {std::min(range.least, value), std::max(range.most, value)};
  }
  if (!cells.diverging || range.most < range.least) return range;
  const double reach = std::max(std::abs(range.least), std::abs(range.most));
  return {-reach, reach};
}

// Where a value lies in a range, from 0 to 1.
double place_in(const Range& range, double value) {
  return range.most > range.least ? (value - range.least) / (range.most - range.least) : 0.5;
}

// Two characters. Colours are those of terminals with 256: purple to orange, or blue to yellow.
std::string coloured_cell(double place, bool diverging) {
  constexpr std::array kDiverging{54, 97, 140, 183, 255, 223, 215, 208, 130};
  constexpr std::array kSequential{17, 18, 24, 60, 102, 143, 179, 221, 227};
  const auto level = static_cast<size_t>(std::lround(place * 8));
  return fmt::format("\x1b[48;5;{}m  \x1b[0m", diverging ? kDiverging[level] : kSequential[level]);
}

std::string plain_cell(double place, bool diverging) {
  if (!diverging) return fmt::format("{:>2}", std::lround(place * 10));
  const long tenths = std::lround((2 * place - 1) * 9);
  return tenths == 0 ? " 0" : fmt::format("{:+}", tenths);
}

size_t longest(const std::vector<std::string>& names) {
  size_t most = 0;
  for (const std::string& name : names) most = std::max(most, name.size());
  return most;
}

// Fenced in Markdown, where lines would else flow together.
std::string figure(const std::string& title, const std::string& text, const TextStyle& style) {
  return style.markdown ? fmt::format("\n{}\n\n```\n{}```\n", title, text)
                        : fmt::format("\n{}\n\n{}", title, text);
}

// What a map's colours or digits mean.
std::string legend(const CellMap& cells, const Range& range, size_t width, const TextStyle& style) {
  const std::string indent(width + 2, ' ');
  if (!(range.most >= range.least)) return indent + "no numbers\n";
  if (style.colour && cells.diverging)
    return fmt::format("{}purple: {:.4g}, white: 0, orange: {:.4g}\n", indent, range.least, range.most);
  if (style.colour) return fmt::format("{}blue: {:.4g}, yellow: {:.4g}\n", indent, range.least, range.most);
  return cells.diverging ? fmt::format("{}-9: {:.4g}, +9: {:.4g}\n", indent, range.least, range.most)
                         : fmt::format("{}0: {:.4g}, 10: {:.4g}\n", indent, range.least, range.most);
}

// The value of a key at each row; without a key nothing at each.
std::vector<std::string> key_cells(const Cube& cube, std::string_view name) {
  std::vector<std::string> cells(name.empty() ? static_cast<size_t>(cube.rows()) : 0);
  for (size_t a = 0; a < cube.axes.size(); ++a) {
    for (const Column& key : cube.axes[a]->keys) {
      for (int64_t row = 0; key.figure.name == name && row < cube.rows(); ++row)
        cells.push_back(key.cell(cube.place(row, a)));
    }
  }
  return cells;
}

}  // namespace

std::vector<Bar> bars_of(const Cube& cube, std::string_view series, std::string_view place,
                         std::string_view column) {
  const std::vector<std::string> all = key_cells(cube, series), places = key_cells(cube, place);
  const std::vector<double>& numbers = cube.find(column)->numbers();
  std::vector<Bar> bars;
  for (size_t first = 0; first < all.size(); ++first) {
    const auto before = std::span(all).first(first);
    if (std::ranges::find(before, all[first]) != before.end()) continue;
    for (size_t row = first; row < all.size(); ++row) {
      if (all[row] == all[first] && std::isfinite(numbers[row]))
        bars.push_back({all[row], places[row], numbers[row]});
    }
  }
  return bars;
}

std::string bar_chart(const std::string& title, const std::vector<Bar>& bars, const TextStyle& style) {
  double most = 0;
  std::vector<std::string> series, places;
  for (const Bar& bar : bars) {
    most = std::max(most, bar.value.value_or(0));
    series.push_back(bar.series);
    places.push_back(bar.place);
  }
  if (!(most > 0)) return "";
  const size_t series_width = longest(series), place_width = longest(places);
  std::string text;
  for (size_t i = 0; i < bars.size(); ++i) {
    const bool goes_on = i > 0 && bars[i].series == bars[i - 1].series;
    const double share = bars[i].value.value_or(0) / most;
    text += fmt::format("{:<{}}  {:>{}}  {} {}\n", goes_on ? "" : bars[i].series, series_width, bars[i].place,
                        place_width, style.colour ? blocks(share) : plain_bar(share), cell(bars[i].value));
  }
  return figure(title, text, style);
}

std::string cell_map(const CellMap& cells, const TextStyle& style) {
  const Range range = range_of(cells);
  const size_t width = longest(cells.rows);
  std::string text = std::string(width, ' ');
  for (size_t column = 0; column < cells.columns; ++column) text += fmt::format("{:>3}", column % 100);
  text += '\n';
  for (size_t row = 0; row < cells.rows.size(); ++row) {
    text += fmt::format("{:>{}}", cells.rows[row], width);
    for (size_t column = 0; column < cells.columns; ++column) {
      const double value = cells.values[row * cells.columns + column], place = place_in(range, value);
      text += ' ';
      if (!std::isfinite(value))
        text += " -";
      else
        text += style.colour ? coloured_cell(place, cells.diverging) : plain_cell(place, cells.diverging);
    }
    text += '\n';
  }
  text += legend(cells, range, width, style);
  return figure(cells.title, text, style);
}

}  // namespace kvbound::sim
