// Text of help, filled into lines of a width.
//
// A text consists of
//   paragraphs      lines at the margin, up to an empty line
//   items           a line that begins with two spaces, and those behind it with more; a term, two spaces or
//                   more and its meaning, which stands beside it
//   blocks          lines that begin with four spaces or more behind an empty line or a
//                   paragraph: they stay as they are
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvbound::sim {

/// The text in lines of at most `width` columns, but for words that are longer and for blocks.
std::string filled(std::string_view text, int64_t width);

/// A list of items, "  term  meaning", whose meanings begin in one column, behind the longest term that
///                           leaves half of the width.
std::string items_text(const std::vector<std::pair<std::string, std::string>>& items, int64_t width);

/// A command as it can be typed, in lines that end in a backslash; it is broken
/// between words, never in quotes.
std::string command_text(std::string_view command, int64_t width);

}  // namespace kvbound::sim
