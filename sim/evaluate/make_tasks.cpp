#include "make_tasks.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/portable_random.hpp>

namespace kvbound::sim {
namespace {

using traces::Stream;

constexpr int64_t kLongestWord = 10;
constexpr int kAttempts = 100;  // to find words that do not stand before a colon in the prose

/// Names of child streams: what the numbers are drawn for.
enum Purpose : uint64_t { kPassage, kWords, kNumbers, kPositions };

/// In 0..count - 1.
int64_t drawn(const Stream& random, uint64_t index, int64_t count) {
  return static_cast<int64_t>(random.bits(index) % static_cast<uint64_t>(count));
}

std::vector<int64_t> bytes_of_text(std::string_view text) {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// Where the passage of the number-th of `count` tasks should begin: somewhere in its share of the text if that is long
/// enough, otherwise anywhere.
int64_t passage_start(const Prose& prose, int64_t length, int64_t number, int64_t count,
                      const Stream& random) {
  const int64_t size = std::ssize(prose.text());
  if (size < length) {
    throw TraceError(prose.path(), size, "",
                     fmt::format("the text ends after {} bytes; expected at least {}", size, length));
  }
  const int64_t share = size / count;
  if (share < length) return drawn(random, 0, size - length + 1);
  return number * share + drawn(random, 0, share - length + 1);
}

struct Needle {
  std::string word;
  std::string number;
  int64_t position = 0;  // in the prose, in bytes

  std::string text() const { return " " + word + ":" + number + " "; }
  std::string question() const { return "\n" + word + ":"; }
};

bool has_ending(const std::vector<Needle>& needles, const std::string& word) {
  return std::ranges::any_of(
      needles, [&](const Needle& other) { return other.word.ends_with(word) || word.ends_with(other.word); });
}

bool has_number(const std::vector<Needle>& needles, const std::string& number) {
  return std::ranges::any_of(needles, [&](const Needle& other) { return other.number == number; });
}

/// `digits` digits, of which the first is not 0.
std::string random_number(const Stream& random, int64_t digits) {
  std::string number;
  for (int64_t d = 0; d < digits; ++d) {
    const int64_t least = d == 0 ? 1 : 0;
    number += static_cast<char>('0' + least + drawn(random, static_cast<uint64_t>(d), 10 - least));
  }
  return number;
}

/// Needles without positions; the first is the one that is asked for.
std::vector<Needle> random_needles(const Prose& prose, const std::vector<std::string>& words,
                                   const TaskOptions& options, const Stream& random) {
  std::vector<Needle> needles;
  const traces::Permutation order(random.child(kWords), std::max<int64_t>(1, std::ssize(words)));
  for (int64_t i = 0; i < std::ssize(words) && std::ssize(needles) < options.needles; ++i) {
    const std::string& word = words[order(i)];
    if (has_ending(needles, word)) continue;
    std::string number;
    for (uint64_t draw = 0; number.empty() || has_number(needles, number); ++draw) {
      number =
          random_number(random.child(kNumbers).child(static_cast<uint64_t>(i)).child(draw), options.answer);
    }
    needles.push_back({word, number});
  }
  if (std::ssize(needles) < options.needles) {
    throw TraceError(prose.path(), -1, "",
                     fmt::format("has {} words of 4 to 10 small letters of which none is the end of another; "
                                 "expected {}, one for each needle",
                                 needles.size(), options.needles));
  }
  return needles;
}

/// The prose with every needle put before its position; of equal positions the earlier needle comes first.
std::string with_needles(std::string_view prose, std::vector<Needle> needles) {
  std::ranges::stable_sort(needles, {}, &Needle::position);
  std::string text;
  int64_t taken = 0;
  for (const Needle& needle : needles) {
    text += prose.substr(taken, needle.position - taken);
    text += needle.text();
    taken = needle.position;
  }
  text += prose.substr(taken);
  return text;
}

/// Puts the first needle at `depth` and the others anywhere in a passage.
void place_needles(const Prose& prose, int64_t begin, int64_t length, double depth, const Stream& random,
                   std::vector<Needle>& needles) {
  for (size_t i = 0; i < needles.size(); ++i) {
    int64_t position =
        i == 0 ? static_cast<int64_t>(depth * static_cast<double>(length)) : drawn(random, i, length + 1);
    while (!prose.is_between_characters(begin + position)) --position;
    needles[i].position = position;
  }
}

/// The number-th task of a length: its prompt, answer and question.
struct NeedlePrompt {
  std::string prompt;
  Needle asked;
};

NeedlePrompt needle_prompt(const Prose& prose, const std::vector<std::string>& words,
                           const TaskOptions& options, int64_t length, int64_t number) {
  const double depth = options.depths[number % std::ssize(options.depths)];
  const Stream task =
      Stream(options.seed).child(static_cast<uint64_t>(length)).child(static_cast<uint64_t>(number));
  const int64_t start = passage_start(prose, length, number, options.tasks, task.child(kPassage));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Stream random = task.child(kWords).child(static_cast<uint64_t>(attempt));
    std::vector<Needle> needles = random_needles(prose, words, options, random);
    int64_t room = length - std::ssize(needles[0].question());
    for (const Needle& needle : needles) room -= std::ssize(needle.text());
    const int64_t begin = prose.passage(start, std::array{room});
    const std::string_view passage = prose.text().substr(begin, room);
    const bool is_ambiguous = std::ranges::any_of(needles, [&](const Needle& needle) {
      return passage.find(needle.word + ":") != std::string_view::npos;
    });
    if (is_ambiguous) continue;
    place_needles(prose, begin, room, depth, random.child(kPositions), needles);
    return {with_needles(passage, needles) + needles[0].question(), needles[0]};
  }
  throw TraceError(prose.path(), start, "", "too many words stand before a colon here");
}

}  // namespace

int64_t shortest_needle_prompt(const TaskOptions& options) {
  return options.needles * (kLongestWord + options.answer + 3) + kLongestWord + 2 + 1;
}

std::vector<Task> needle_tasks(const Prose& prose, const TaskOptions& options) {
  const std::vector<std::string> words = prose.words();
  std::vector<Task> tasks;
  for (const int64_t length : options.lengths) {
    if (length < shortest_needle_prompt(options)) {
      throw InvalidPolicy(
          fmt::format("a prompt of {} bytes is too short for {} needles of {} digits; expected at "
                      "least {}",
                      length, options.needles, options.answer, shortest_needle_prompt(options)));
    }
    for (int64_t i = 0; i < options.tasks; ++i) {
      const auto [prompt, asked] = needle_prompt(prose, words, options, length, i);
      Task& task = tasks.emplace_back();
      task.kind = fmt::format("{}-{}", options.is_context_only ? "context-only" : "needle", length);
      task.id = fmt::format("{}-{}", task.kind, i + 1);
      task.prompt = bytes_of_text(prompt);
      task.target = bytes_of_text(asked.number);
      task.is_answer = true;
      task.compress_at = options.is_context_only ? length - std::ssize(asked.question()) : length;
      task.depth = options.depths[i % std::ssize(options.depths)];
    }
  }
  return tasks;
}

std::vector<Task> continuation_tasks(const Prose& prose, const TaskOptions& options) {
  std::vector<Task> tasks;
  for (const int64_t length : options.lengths) {
    const int64_t whole = length + options.continuation;
    for (int64_t i = 0; i < options.tasks; ++i) {
      const Stream random =
          Stream(options.seed).child(static_cast<uint64_t>(length)).child(static_cast<uint64_t>(i));
      const int64_t start = passage_start(prose, whole, i, options.tasks, random.child(kPassage));
      const int64_t begin = prose.passage(start, std::array{length, whole});
      Task& task = tasks.emplace_back();
      task.kind = fmt::format("continuation-{}", length);
      task.id = fmt::format("{}-{}", task.kind, i + 1);
      task.prompt = bytes_of_text(prose.text().substr(begin, length));
      task.target = bytes_of_text(prose.text().substr(begin + length, options.continuation));
      task.compress_at = length;
    }
  }
  return tasks;
}

}  // namespace kvbound::sim
