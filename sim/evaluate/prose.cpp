#include "prose.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kMostProseBytes = int64_t{1} << 30;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_continuation_byte(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// The bytes of the UTF-8 character that begins at `position`; 0 if none does. The ranges of the second byte are those
/// of the Unicode Standard, table 3-7: no overlong form, no surrogate, nothing above U+10FFFF.
size_t character_length(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) -> unsigned {
    return position + i < text.size() ? static_cast<unsigned char>(text[position + i]) : 0U;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const unsigned least = first == 0xe0 ? 0xa0U : first == 0xf0 ? 0x90U : 0x80U;
  const unsigned most = first == 0xed ? 0x9fU : first == 0xf4 ? 0x8fU : 0xbfU;
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (second < least || second > most) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

void require_utf8(const std::string& path, std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    const size_t length = character_length(text, position);
    if (length == 0) {
      throw TraceError(path, static_cast<int64_t>(position), "", "is not UTF-8");
    }
    position += length;
  }
}

std::string with_plain_line_ends(std::string text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    text[end++] = text[i];
  }
  text.resize(end);
  return text;
}

bool is_white_space(char c) { return c == ' ' || c == '\n' || c == '\t'; }

}  // namespace

Prose::Prose(const std::string& path) : path_(path) {
  const traces::InputFile file(path);
  if (file.size() > kMostProseBytes) {
    throw TraceError(path, -1, "", fmt::format("has {} bytes; expected at most 1 GiB", file.size()));
  }
  text_.resize(static_cast<size_t>(file.size()));
  file.read(0, text_, "");
  require_utf8(path, text_);
  if (text_.starts_with(kByteOrderMark)) text_.erase(0, kByteOrderMark.size());
  text_ = with_plain_line_ends(std::move(text_));
}

bool Prose::is_between_characters(int64_t position) const {
  return position == std::ssize(text_) || !is_continuation_byte(text_[position]);
}

int64_t Prose::passage(int64_t wanted, std::span<const int64_t> cuts) const {
  const auto has_clean_cuts = [&](int64_t begin) {
    return is_between_characters(begin) &&
           std::ranges::all_of(cuts, [&](int64_t cut) { return is_between_characters(begin + cut); });
  };
  for (int64_t begin = wanted; begin >= 0; --begin) {
    if ((begin == 0 || is_white_space(text_[begin - 1])) && has_clean_cuts(begin)) return begin;
  }
  for (int64_t begin = wanted; begin >= 0; --begin) {
    if (has_clean_cuts(begin)) return begin;
  }
  throw TraceError(path_, wanted, "",
                   fmt::format("no passage of {} bytes begins here or before and ends between two characters",
                               cuts.back()));
}

std::vector<std::string> Prose::words() const {
  constexpr size_t kShortest = 4, kLongest = 10;
  const auto is_small = [](char c) { return 'a' <= c && c <= 'z'; };
  const auto is_part = [&](char c) {
    return is_small(c) || ('A' <= c && c <= 'Z') || c == '\'' || static_cast<unsigned char>(c) >= 0x80;
  };
  std::set<std::string> words;
  for (auto begin = text_.begin(); begin != text_.end();) {
    begin = std::find_if(begin, text_.end(), is_part);
    const auto end = std::find_if_not(begin, text_.end(), is_part);
    const auto length = static_cast<size_t>(end - begin);
    if (kShortest <= length && length <= kLongest && std::all_of(begin, end, is_small))
      words.emplace(begin, end);
    begin = end;
  }
  return {words.begin(), words.end()};
}

}  // namespace kvbound::sim
