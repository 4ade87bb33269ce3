// Parts of error messages: text from files, made printable on one line of a terminal, and the system's errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::traces {

/// Text of unknown origin, made safe to quote on one line: bytes outside printable ASCII become \xNN, and text longer
/// than `limit` bytes is truncated and ends in "...".
inline std::string printable(std::string_view text, size_t limit = 80) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (0x20 <= byte && byte < 0x7f) {
      result += c;
    } else {
      result.append("\\x") += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return text.size() > limit ? result + "..." : result;
}

/// The same in double quotes.
inline std::string in_quotes(std::string_view text, size_t limit = 80) {
  return '"' + printable(text, limit) + '"';
}

/// "cannot ACTION PATH: REASON", where the reason is the text of errno.
inline IoError io_error(const std::string& action, const std::string& path, int error_number) {
  return IoError("cannot " + action + " " + path + ": " + std::generic_category().message(error_number));
}

}  // namespace kvbound::traces
