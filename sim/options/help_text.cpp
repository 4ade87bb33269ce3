#include "help_text.hpp"

#include <algorithm>
#include <utility>

namespace kvbound::sim {
namespace {

constexpr std::string_view kItem = "  ", kBlock = "    ";
constexpr int64_t kDeep = 6;  // where meanings begin that have no room beside their terms

// Appends words of a text, in lines of at most `width` columns. `column` is where the last line ends; further
// lines begin with `indent` spaces.
void fill(std::string& lines, std::string_view text, int64_t column, int64_t indent, int64_t width) {
  bool first = true;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return;
    const std::string_view word = text.substr(0, text.find(' '));
    if (!first && column + 1 + std::ssize(word) > width) {
      lines += "\n" + std::string(static_cast<size_t>(indent), ' ');
      column = indent;
    } else if (!first) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += std::ssize(word);
    text.remove_prefix(word.size());
    first = false;
  }
}

// An item, "  term  meaning", whose meaning begins in a column, on the next line if the
//                   term is longer than that.
std::string item_text(std::string_view term, std::string_view meaning, int64_t column, int64_t width) {
  std::string lines(kItem);
  fill(lines, term, std::ssize(kItem), std::ssize(kBlock), width);
  const int64_t gap = column - std::ssize(lines);
  lines += gap < 2 ? "\n" + std::string(static_cast<size_t>(column), ' ')
                   : std::string(static_cast<size_t>(gap), ' ');
  fill(lines, meaning, column, column, width);
  return lines + "\n";
}

// A line of an item with those that continue it, as one.
std::string filled_item(std::string_view item, int64_t width) {
  item.remove_prefix(kItem.size());
  const size_t gap = item.find("  ");
  if (gap == std::string_view::npos) {
    std::string lines(kItem);
    fill(lines, item, std::ssize(kItem), std::ssize(kBlock), width);
    return lines + "\n";
  }
  const size_t meaning = item.find_first_not_of(' ', gap);
  const int64_t column = std::ssize(kItem) + static_cast<int64_t>(meaning);
  return item_text(item.substr(0, gap), item.substr(meaning), column > width / 2 ? kDeep : column, width);
}

std::string_view next_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

// What follows a line of a text and belongs to it: lines that `continues` accepts, without their indentation.
template <class Continues>
std::string joined(std::string_view line, std::string_view& text, const Continues& continues) {
  std::string whole(line);
  while (!text.empty()) {
    std::string_view rest = text;
    const std::string_view next = next_line(rest);
    if (next.empty() || !continues(next)) break;
    whole += ' ';
    whole += next.substr(next.find_first_not_of(' '));
    text = rest;
  }
  return whole;
}

}  // namespace

std::string filled(std::string_view text, int64_t width) {
  std::string lines;
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    if (line.starts_with(kBlock) || line.empty()) {
      (lines += line) += '\n';
    } else if (line.starts_with(kItem)) {
      lines += filled_item(joined(line, text, [](auto next) { return next.starts_with(kBlock); }), width);
    } else {
      fill(lines, joined(line, text, [](auto next) { return !next.starts_with(' '); }), 0, 0, width);
      lines += '\n';
    }
  }
  return lines;
}

std::string items_text(const std::vector<std::pair<std::string, std::string>>& items, int64_t width) {
  int64_t column = kDeep;
  for (const auto& [term, meaning] : items) {
    const int64_t own = std::ssize(kItem) + std::ssize(term) + 2;
    if (own <= width / 2) column = std::max(column, own);
  }
  std::string lines;
  for (const auto& [term, meaning] : items) lines += item_text(term, meaning, column, width);
  return lines;
}

std::string command_text(std::string_view command, int64_t width) {
  std::string lines(kItem);
  int64_t column = std::ssize(kItem);
  bool quoted = false;
  for (size_t begin = 0; begin < command.size();) {
    size_t end = begin;
    for (; end < command.size() && (quoted || command[end] != ' '); ++end) {
      if (command[end] == '"' || command[end] == '\'') quoted = !quoted;
    }
    const std::string_view word = command.substr(begin, end - begin);
    if (begin > 0 && column + 1 + std::ssize(word) > width - 2) {
      lines += " \\\n";
      lines += "      ";
      column = 6;
    } else if (begin > 0) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += std::ssize(word);
    begin = end + 1;
  }
  return lines + "\n";
}

}  // namespace kvbound::sim
