// What a figure is called, what it says and how it is shown: one row for tables, CSV, JSON, the
// page and the documentation.
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvbound::sim {

/// How the numbers of a figure are shown in tables. In JSON and CSV every number is in the
/// shortest text that reads back.
enum class Format {
  number,    ///< four significant digits
  count,     ///< an integer
  share,     ///< of 0 to 1, shown in per cent
  duration,  ///< seconds, shown in a suitable unit
  memory,    ///< bytes, likewise
  text,      ///< no number
};

/// Which way a figure is better.
enum class Better { neither, lower, higher };

/// When a table has a figure's column: always, as keys that tell rows apart; if no columns are
/// asked for; only if it is.
enum class Shown { always, by_default, if_asked };

/// Whether a table shows a cell in red.
using Alarming = bool (*)(std::string_view cell);

struct Figure {
  std::string name;     ///< the column in JSON and CSV: "kept_mass"
  std::string heading;  ///< in tables: "kept mass"
  std::string meaning;  ///< a sentence for the documentation, with the unit
  Format format = Format::number;
  Better better = Better::neither;
  Shown shown = Shown::by_default;
  Alarming alarming = nullptr;  ///< null: never
};

/// What a figure is beside its names: in any order.
template <class T>
concept FigureTrait = std::same_as<T, Format> || std::same_as<T, Better> || std::same_as<T, Shown> ||
    std::convertible_to<T, Alarming>;

inline void set(Figure& figure, Format format) { figure.format = format; }
inline void set(Figure& figure, Better better) { figure.better = better; }
inline void set(Figure& figure, Shown shown) { figure.shown = shown; }
inline void set(Figure& figure, Alarming alarming) { figure.alarming = alarming; }

/// Numbers, counts, and texts. Without a heading: the name is the heading.
template <FigureTrait... Traits>
Figure number_figure(std::string name, std::string heading, std::string meaning, Traits... traits) {
  Figure figure{std::move(name), std::move(heading), std::move(meaning)};
  (set(figure, traits), ...);
  return figure;
}
template <FigureTrait... Traits>
Figure number_figure(const std::string& name, std::string meaning, Traits... traits) {
  return number_figure(name, name, std::move(meaning), traits...);
}
Figure count_figure(const auto&... of) { return number_figure(of..., Format::count); }
Figure text_figure(const auto&... of) { return number_figure(of..., Format::text); }

/// The figures of rows, such as the columns of a cube.
template <class Row>
std::vector<Figure> figures_of(const std::vector<Row>& rows) {
  std::vector<Figure> figures;
  for (const Row& row : rows) figures.push_back(row.figure);
  return figures;
}

/// For counts of what must not be: whether it is there.
bool is_not_zero(std::string_view cell);

/// A number as a table shows it; "-" for NaN.
std::string cell_text(const Figure& figure, double number);

/// A number as JSON and CSV have it: the shortest text that reads back, a count without an exponent; empty
/// for NaN and infinity, which JSON does not have.
std::string number_text(const Figure& figure, double number);

/// Whether a person means the figure: its name or its heading, where capitals, spaces,
/// `-` and `_` do not matter.
bool is_named(const Figure& figure, std::string_view text);

}  // namespace kvbound::sim
