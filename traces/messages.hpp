// Parts of error messages: text from files, made printable on one line of a terminal,
// and the system's errors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::traces {

/// No message quotes more of anybody's text than so many characters.
inline constexpr size_t kMostQuoted = 120;

/// Text of unknown origin, made safe to quote on one line: bytes outside printable ASCII become \xNN, and
/// what has more than `limit` characters then, at most kMostQuoted, is truncated and ends in "...".
inline std::string printable(std::string_view text, size_t limit = 80) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  limit = std::min(limit, kMostQuoted);
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = 0x20 <= byte && byte < 0x7f;
    if (result.size() + (is_plain ? 1 : 4) > limit) return result + "...";
    if (is_plain) {
      result += c;
    } else {
      (result += "\\x") += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return result;
}

/// The same in double quotes; of quoted, an argument in single quotes.
inline std::string in_quotes(std::string_view text, size_t limit = 80) {
  return '"' + printable(text, limit) + '"';
}
inline std::string quoted(std::string_view argument) { return "'" + printable(argument, kMostQuoted) + "'"; }

/// A path from a file, or in a table.
inline std::string printable_path(const std::string& path) {
  return printable(without_middle(path), kMostQuoted);
}

/// "cannot ACTION PATH: REASON", where the reason is the text of errno.
inline IoError io_error(const std::string& action, const std::string& path, int error_number) {
  return IoError("cannot " + action + " " + without_middle(path) + ": " +
                 std::generic_category().message(error_number));
}

}  // namespace kvbound::traces
