#include "table.hpp"

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include <kvbound/sim/options/terminal_width.hpp>

namespace kvbound::sim {
namespace {

std::string coloured(const std::string& text, const char* code) {
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

// A cell of a Markdown table: what would end it is escaped.
std::string markdown_cell(const std::string& text) {
  std::string escaped;
  for (const char c : text)
    escaped += c == '|' || c == '*' || c == '_' || c == '<' ? std::string{'\\', c} : std::string(1, c);
  return escaped;
}

std::string markdown_table(const std::vector<TableRow>& rows, size_t left_columns) {
  std::string text;
  for (const TableRow& row : rows) {
    for (size_t c = 0; c < rows.front().size(); ++c)
      text += fmt::format("| {} ", c < row.size() ? markdown_cell(row[c]) : "");
    text += "|\n";
    if (&row != &rows.front()) continue;
    for (size_t c = 0; c < row.size(); ++c) text += c < left_columns ? "|---" : "|---:";
    text += "|\n";
  }
  return text;
}

std::vector<size_t> widths_of(const std::vector<TableRow>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const TableRow& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  return widths;
}

}  // namespace

int64_t width_of(const std::vector<TableRow>& rows) {
  const std::vector<size_t> widths = widths_of(rows);
  return static_cast<int64_t>(std::reduce(widths.begin(), widths.end()) + 2 * (widths.size() - 1));
}

std::string table(const std::vector<TableRow>& rows, const TableStyle& style) {
  if (style.text.markdown) return markdown_table(rows, style.left_columns);
  const TableRow& headings = rows.front();
  const std::vector<size_t> widths = widths_of(rows);
  std::string text;
  for (const TableRow& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const bool left = c < style.left_columns, last = c + 1 == row.size();
      std::string shown = !left  ? fmt::format("{:>{}}", row[c], widths[c])
                          : last ? row[c]
                                 : fmt::format("{:<{}}", row[c], widths[c]);
      const bool heading = &row == &headings;
      if (style.text.colour && heading) shown = coloured(shown, "1");
      if (style.text.colour && !heading && style.alarming && style.alarming(headings[c], row[c]))
        shown = coloured(shown, "31");
      text += (c > 0 ? "  " : "") + shown;
    }
    text += '\n';
  }
  return text;
}

std::string cell(std::optional<double> figure) { return figure ? fmt::format("{:#.4g}", *figure) : "-"; }

TextStyle terminal_style() {
  const char* no_colour = std::getenv("NO_COLOR");
  return {.colour = isatty(STDOUT_FILENO) == 1 && (!no_colour || !*no_colour),
          .width = terminal_width().value_or(0)};
}

}  // namespace kvbound::sim
