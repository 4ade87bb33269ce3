#include <array>
#include <utility>
#include <vector>

#include "mutation.hpp"

namespace kvbound::fuzz {
namespace {

// A part of a text.
struct Span {
  size_t begin = 0, end = 0;

  std::string_view of(std::string_view text) const { return text.substr(begin, end - begin); }
};

// What a text consists of: its words, strings and brackets with what is in them; and what stands
// between commas or lines.
struct Structure {
  std::vector<Span> values, items;
};

constexpr std::string_view kOpening = "[{(", kClosing = "]})";
constexpr std::string_view kEndsWord = "[]{}():,;=+/\n\r\t \"'";

// The end of the string that begins at `at`.
size_t string_end(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == text[at]) {
      return i + 1;
    }
  }
  return text.size();
}

Structure structure_of(std::string_view text) {
  Structure found;
  std::vector<std::pair<size_t, size_t>> open;  // brackets, and where the item was that they are in
  size_t item = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      found.values.push_back({i, string_end(text, i)});
      i = found.values.back().end;
      continue;
    }
    if (kEndsWord.find(c) == kEndsWord.npos) {
      found.values.push_back({i, std::min(text.find_first_of(kEndsWord, i), text.size())});
      i = found.values.back().end;
      continue;
    }
    const bool closes = kClosing.find(c) != kClosing.npos;
    if ((c == ',' || c == '\n' || c == ':' || c == '+' || closes) && i > item)
      found.items.push_back({item, i});
    if (kOpening.find(c) != kOpening.npos) open.emplace_back(i, item);
    ++i;
    if (closes && !open.empty()) {
      found.values.push_back({open.back().first, i});
      item = open.back().second;
      open.pop_back();
    } else if (c == ',' || c == '\n' || c == '+' || kOpening.find(c) != kOpening.npos) {
      item = i;
    }
  }
  if (item < text.size()) found.items.push_back({item, text.size()});
  if (found.values.empty()) found.values.push_back({0, text.size()});
  if (found.items.empty()) found.items.push_back({0, text.size()});
  return found;
}

constexpr auto kExtremes = std::to_array<std::string_view>({"0",
                                                            "-0",
                                                            "1",
                                                            "-1",
                                                            "2",
                                                            "255",
                                                            "2147483647",
                                                            "2147483648",
                                                            "-2147483648",
                                                            "4294967295",
                                                            "4294967296",
                                                            "9007199254740993",
                                                            "9223372036854775807",
                                                            "9223372036854775808",
                                                            "-9223372036854775808",
                                                            "18446744073709551615",
                                                            "18446744073709551616",
                                                            "1e308",
                                                            "1e309",
                                                            "5e-324",
                                                            "1e-400",
                                                            "0.1",
                                                            "1.5",
                                                            "NaN",
                                                            "Infinity",
                                                            "-Infinity",
                                                            "null",
                                                            "true",
                                                            "false",
                                                            "\"\"",
                                                            "\"a\"",
                                                            "[]",
                                                            "{}",
                                                            "[[]]",
                                                            "[1,2]",
                                                            "{\"\":0}",
                                                            "\"\\u0000\"",
                                                            "\"\\ud800\"",
                                                            "\"\xff\"",
                                                            "\"\xc3\xa9\""});

// What strings may have that is easily mistaken.
constexpr auto kInStrings = std::to_array<std::string_view>(
    {"\\u0000", "\\ud800", "\\udc00\\ud800", "\\\"", "\\\\", "\\/", "\\n", "\\x", "\xff", "\xc0\x80",
     "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xef\xbb\xbf", "\x1b[31m", "../", "/", "%s", "\x7f", "\n"});

std::string replaced(std::string_view text, Span span, std::string_view by) {
  std::string result(text.substr(0, span.begin));
  return result.append(by).append(text.substr(span.end));
}

std::string repeated(std::string_view text, std::string_view separator, size_t times, size_t room) {
  std::string result(text);
  for (size_t i = 0; i < times && result.size() + separator.size() + text.size() <= room; ++i)
    result.append(separator).append(text);
  return result;
}

// The value within so many brackets or objects.
std::string nested(std::string_view value, size_t levels, Draw& draw) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kAround{
      {{"[", "]"}, {"{\"a\":", "}"}, {"(", ")"}}};
  const auto [opening, closing] = kAround[draw.below(kAround.size())];
  std::string result;
  for (size_t i = 0; i < levels; ++i) result += opening;
  result += value;
  for (size_t i = 0; i < levels && !draw.one_in(100'000); ++i) result += closing;
  return result;
}

std::string exchanged(std::string_view text, Span a, Span b) {
  if (b.begin < a.begin) std::swap(a, b);
  if (a.end > b.begin) return replaced(text, a, b.of(text));
  return replaced(replaced(text, b, a.of(text)), a, b.of(text));
}

// Without the item, and the comma behind or before it.
std::string without(std::string_view text, Span item) {
  if (item.end < text.size() && text[item.end] == ',') {
    ++item.end;
  } else if (item.begin > 0 && text[item.begin - 1] == ',') {
    --item.begin;
  }
  return replaced(text, item, "");
}

std::string with_insertion(std::string_view text, Span value, Draw& draw) {
  const size_t at = value.begin + draw.below(value.end - value.begin + 1);
  const std::string_view piece = kInStrings[draw.below(kInStrings.size())];
  return replaced(text, {at, at}, piece);
}

}  // namespace

std::string changed_text(std::string_view text, size_t room, Draw& draw) {
  const Structure structure = structure_of(text);
  const auto value = [&] { return structure.values[draw.below(structure.values.size())]; };
  const auto item = [&] { return structure.items[draw.below(structure.items.size())]; };
  const Span at = value();
  const size_t left = room - std::min(room, text.size());
  switch (draw.below(12)) {
    case 0:
    case 1:
      return replaced(text, at, kExtremes[draw.below(kExtremes.size())]);
    case 2:
      return replaced(text, at, value().of(text));
    case 3:
      return exchanged(text, at, value());
    case 4:
      return exchanged(text, item(), item());
    case 5:
      return without(text, item());
    case 6: {
      const Span one = item();
      return replaced(text, one,
                      repeated(one.of(text), text.substr(one.end, 1) == "\n" ? "\n" : ",", 1, room));
    }
    case 7: {  // long lists, or long words
      const Span one = draw.one_in(2) ? item() : at;
      const std::string_view separator = draw.one_in(3) ? "" : ",";
      return replaced(text, one, repeated(one.of(text), separator, draw.magnitude(5), left));
    }
    case 8:
      return replaced(text, at, nested(at.of(text), std::min(draw.magnitude(5), left / 7), draw));
    case 9:
      return with_insertion(text, at, draw);
    case 10:
      return replaced(text, at, changed_bytes(at.of(text), at.end - at.begin + std::min<size_t>(left, 64)));
    default:
      return changed_bytes(text, room);
  }
}

std::string spliced_text(std::string_view text, std::string_view other, Draw& draw) {
  const Structure own = structure_of(text), others = structure_of(other);
  const bool items = draw.one_in(2);
  const auto drawn = [&](const Structure& structure) {
    const std::vector<Span>& all = items ? structure.items : structure.values;
    return all[draw.below(all.size())];
  };
  return replaced(text, drawn(own), drawn(others).of(other));
}

}  // namespace kvbound::fuzz
