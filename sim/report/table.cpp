#include "table.hpp"

#include <unistd.h>
#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

std::string coloured(const std::string& text, const char* code) {
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace

std::string table(const std::vector<TableRow>& rows, const TableStyle& style) {
  const TableRow& headings = rows.front();
  std::vector<size_t> widths(headings.size(), 0);
  for (const TableRow& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const TableRow& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const bool left = c < style.left_columns, last = c + 1 == row.size();
      std::string shown = !left  ? fmt::format("{:>{}}", row[c], widths[c])
                          : last ? row[c]
                                 : fmt::format("{:<{}}", row[c], widths[c]);
      const bool heading = &row == &headings;
      if (style.colour && heading) shown = coloured(shown, "1");
      if (style.colour && !heading && style.alarming && style.alarming(headings[c], row[c]))
        shown = coloured(shown, "31");
      text += (c > 0 ? "  " : "") + shown;
    }
    text += '\n';
  }
  return text;
}

std::string cell(std::optional<double> figure) { return figure ? fmt::format("{:#.4g}", *figure) : "-"; }

bool colour_wanted() {
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (!no_colour || !*no_colour);
}

}  // namespace kvbound::sim
