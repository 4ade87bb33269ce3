#include "suggestion.hpp"

#include <algorithm>
#include <cctype>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvbound::sim {
namespace {

constexpr size_t kLongestWord = 64;  // of longer ones nobody meant a name

bool same_letter(char a, char b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return lower(a) == lower(b);
}

bool begins_with(std::string_view text, std::string_view beginning) {
  return beginning.size() <= text.size() &&
         std::ranges::equal(beginning, text.substr(0, beginning.size()), same_letter);
}

// The number of insertions, deletions, replacements and exchanges of neighbours between two words
// (optimal string alignment).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1);
      now[j] = std::min({replaced, last[j] + 1, now[j - 1] + 1});
      if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const Names& known) {
  if (word.empty() || word.size() > kLongestWord) return "";
  std::string found;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : known) {
    const size_t changes = distance(word, name);
    if (changes >= least || changes >= name.size()) continue;
    least = changes;
    found = name;
  }
  if (!found.empty()) return found;
  const auto begins_so = [&](const std::string& name) { return begins_with(name, word); };
  return std::ranges::count_if(known, begins_so) == 1 ? *std::ranges::find_if(known, begins_so) : "";
}

std::string suggestion(std::string_view word, std::string_view before, const Names& known) {
  const std::string meant = nearest(word, known);
  const std::string question = meant.empty() ? "" : fmt::format("did you mean {}? ", meant);
  return fmt::format("{}{}{}", question, before, fmt::join(known, ", "));
}

}  // namespace kvbound::sim
