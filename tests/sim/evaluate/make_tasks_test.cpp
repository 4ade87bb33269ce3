// Tasks made from a text: what their promises say, and the same bytes on every platform.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/make_tasks.hpp>
#include <kvbound/traces/sha256.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::make_tasks_test {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::StartsWith;

/// English prose of 11 kB; "e" stands for the letter that is put in its place.
std::string prose_text(const std::string& e = "e") {
  std::ostringstream text;
  text << std::ifstream("traces/samples/LICENSE.Apache-2.0", std::ios::binary).rdbuf();
  return std::regex_replace(text.str(), std::regex("e"), e);
}

Prose prose_of(const std::string& text) {
  const TemporaryFolder folder;
  return Prose(folder.write("prose.txt", text));
}

TaskOptions small_options() {
  return {.lengths = {300, 500}, .tasks = 6, .depths = {0, 0.5, 1}, .continuation = 40};
}

std::string text_of(const std::vector<int64_t>& tokens) {
  std::string text;
  for (const int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

/// The word and number of every needle in a text, and what is left of it without them.
std::vector<std::pair<std::string, std::string>> take_needles(std::string& text) {
  static const std::regex kNeedle(" ([a-z]+):([0-9]+) ");
  std::vector<std::pair<std::string, std::string>> needles;
  for (std::smatch match; std::regex_search(text, match, kNeedle);) {
    needles.emplace_back(match[1], match[2]);
    text.erase(static_cast<size_t>(match.position()), static_cast<size_t>(match.length()));
  }
  return needles;
}

TEST(NeedleTasks, HaveTheNeedlesInProseAndAskForOne) {
  const Prose prose = prose_of(prose_text());
  for (const Task& task : needle_tasks(prose, small_options())) {
    std::string prompt = text_of(task.prompt);
    const size_t question = prompt.rfind('\n');
    const std::string word = prompt.substr(question + 1, prompt.size() - question - 2);
    EXPECT_TRUE(prompt.ends_with(":"));
    prompt.resize(question);
    const auto needles = take_needles(prompt);
    EXPECT_EQ(needles.size(), 4U) << task.id;
    std::set<std::string> words, numbers;
    for (const auto& [name, number] : needles) {
      words.insert(name);
      numbers.insert(number);
      EXPECT_EQ(number.size(), 7U);
      EXPECT_NE(number[0], '0');
      if (name == word) {
        EXPECT_EQ(number, text_of(task.target));
      }
    }
    EXPECT_EQ(words.count(word), 1U);
    EXPECT_EQ(words.size(), 4U);
    EXPECT_EQ(numbers.size(), 4U);
    EXPECT_NE(prose.text().find(prompt), std::string_view::npos) << "the rest is a passage";
  }
}

TEST(NeedleTasks, HaveTheirLengthsDepthsAndNames) {
  const auto tasks = needle_tasks(prose_of(prose_text()), small_options());
  ASSERT_EQ(tasks.size(), 12U);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::string length = i < 6 ? "300" : "500";
    EXPECT_EQ(tasks[i].kind, "needle-" + length);
    EXPECT_EQ(tasks[i].id, tasks[i].kind + "-" + std::to_string(i % 6 + 1));
    EXPECT_EQ(std::to_string(tasks[i].prompt.size()), length);
    EXPECT_EQ(tasks[i].compress_at, std::ssize(tasks[i].prompt));
    EXPECT_TRUE(tasks[i].is_answer);
    EXPECT_EQ(tasks[i].depth, std::vector({0.0, 0.5, 1.0})[i % 3]);
  }
}

TEST(NeedleTasks, HaveTheNeedleAtItsDepth) {
  TaskOptions options = small_options();
  options.needles = 1;
  for (const Task& task : needle_tasks(prose_of(prose_text()), options)) {
    std::string prompt = text_of(task.prompt);
    prompt.resize(prompt.rfind('\n'));
    const auto begin = static_cast<double>(prompt.find(" " + text_of(task.prompt).substr(prompt.size() + 1)));
    take_needles(prompt);
    EXPECT_EQ(begin, std::floor(*task.depth * static_cast<double>(prompt.size()))) << task.id;
  }
}

TEST(NeedleTasks, AreTheSameButForTheCompressionWithContextOnly) {
  const Prose prose = prose_of(prose_text());
  TaskOptions options = small_options();
  const auto whole = needle_tasks(prose, options);
  options.is_context_only = true;
  const auto context_only = needle_tasks(prose, options);
  ASSERT_EQ(whole.size(), context_only.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(context_only[i].prompt, whole[i].prompt);
    EXPECT_EQ(context_only[i].target, whole[i].target);
    EXPECT_THAT(context_only[i].id, StartsWith("context-only-"));
    EXPECT_EQ(context_only[i].prompt[context_only[i].compress_at], '\n');
    EXPECT_EQ(text_of(whole[i].prompt).rfind('\n'), context_only[i].compress_at);
  }
}

TEST(NeedleTasks, HaveAnswersOfAnyLengthAndManyNeedles) {
  TaskOptions options = small_options();
  options.lengths = {1500};
  options.needles = 64;
  for (const int64_t digits : {2, 12}) {
    options.answer = digits;
    options.needles = digits == 2 ? 64 : 40;
    for (const Task& task : needle_tasks(prose_of(prose_text()), options)) {
      std::string prompt = text_of(task.prompt);
      EXPECT_EQ(std::ssize(take_needles(prompt)), options.needles);
      EXPECT_EQ(std::ssize(task.target), digits);
      EXPECT_EQ(task.prompt.size(), 1500U);
    }
  }
}

TEST(NeedleTasks, KeepWordsApartThatEndAlike) {
  TaskOptions options = small_options();
  options.needles = 2;
  const std::string text = "unreal real seal ";
  std::string prose;
  while (prose.size() < 600) prose += text;
  for (const Task& task : needle_tasks(prose_of(prose), options)) {
    std::string prompt = text_of(task.prompt);
    const auto needles = take_needles(prompt);
    EXPECT_TRUE(std::ranges::any_of(needles, [](const auto& n) { return n.first == "seal"; })) << prompt;
  }
  options.needles = 3;
  EXPECT_THAT(
      message_of<TraceError>([&] { needle_tasks(prose_of(prose), options); }),
      HasSubstr("has 2 words of 4 to 10 small letters of which none is the end of another; expected 3"));
}

TEST(NeedleTasks, LeaveOutWordsThatStandBeforeAColon) {
  TaskOptions options = small_options();
  options.needles = 1;
  std::string prose;
  while (prose.size() < 600) prose += "taken: free ";
  for (const Task& task : needle_tasks(prose_of(prose), options)) {
    EXPECT_TRUE(text_of(task.prompt).ends_with("\nfree:"));
  }
  EXPECT_THAT(message_of<TraceError>([&] {
                needle_tasks(prose_of(std::regex_replace(prose, std::regex("free"), "and")), options);
              }),
              HasSubstr("too many words stand before a colon"));
}

TEST(NeedleTasks, RefuseTextsAndPromptsThatAreTooShort) {
  TaskOptions options = small_options();
  const std::string text = prose_text();
  EXPECT_THAT(message_of<TraceError>([&] { needle_tasks(prose_of(text.substr(0, 499)), options); }),
              HasSubstr("at byte 499: the text ends after 499 bytes; expected at least 500"));
  EXPECT_EQ(needle_tasks(prose_of(text.substr(0, 500)), options).size(), 12U);
  options.lengths = {shortest_needle_prompt(options)};
  EXPECT_EQ(needle_tasks(prose_of(text), options).size(), 6U);
  --options.lengths[0];
  EXPECT_THAT(message_of<InvalidPolicy>([&] { needle_tasks(prose_of(text), options); }),
              HasSubstr("a prompt of 92 bytes is too short for 4 needles of 7 digits; expected at least 93"));
}

TEST(ContinuationTasks, ArePassagesThatAreCut) {
  const Prose prose = prose_of(prose_text());
  const auto tasks = continuation_tasks(prose, small_options());
  ASSERT_EQ(tasks.size(), 12U);
  for (const Task& task : tasks) {
    EXPECT_EQ(task.kind, "continuation-" + std::to_string(task.prompt.size()));
    EXPECT_EQ(task.target.size(), 40U);
    EXPECT_FALSE(task.is_answer);
    EXPECT_FALSE(task.depth);
    EXPECT_EQ(task.compress_at, std::ssize(task.prompt));
    EXPECT_NE(prose.text().find(text_of(task.prompt) + text_of(task.target)), std::string_view::npos);
  }
}

TEST(MadeTasks, AreApartWhereTheTextIsLongEnough) {
  const Prose prose = prose_of(prose_text());
  int64_t last = 0;
  TaskOptions options = small_options();
  options.lengths = {300};
  options.tasks = 20;
  for (const Task& task : continuation_tasks(prose, options)) {
    const auto begin = static_cast<int64_t>(prose.text().find(text_of(task.prompt)));
    EXPECT_GE(begin, last - 20) << task.id;
    last = begin + 340;
  }
}

TEST(MadeTasks, ReadBackAsTheyWereWritten) {
  const TemporaryFolder folder;
  TaskOptions options = small_options();
  options.is_context_only = true;
  for (const char* e : {"e", "\u00e9", "\u20ac", "\"\\\t\x01"}) {
    const Prose prose = prose_of(prose_text(e));
    auto tasks = needle_tasks(prose, options);
    for (const Task& task : continuation_tasks(prose, options)) tasks.push_back(task);
    std::string lines;
    for (const Task& task : tasks) lines += text_line(task);
    const auto read = read_tasks(folder.write("tasks.jsonl", lines), 256);
    ASSERT_EQ(read.size(), tasks.size());
    for (size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(std::tie(read[i].id, read[i].kind, read[i].prompt, read[i].target, read[i].is_answer,
                         read[i].compress_at, read[i].depth),
                std::tie(tasks[i].id, tasks[i].kind, tasks[i].prompt, tasks[i].target, tasks[i].is_answer,
                         tasks[i].compress_at, tasks[i].depth));
    }
  }
}

TEST(MadeTasks, DifferWithTheSeed) {
  const Prose prose = prose_of(prose_text());
  TaskOptions options = small_options();
  const auto first = needle_tasks(prose, options);
  options.seed = 2;
  const auto second = needle_tasks(prose, options);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NE(first[i].target, second[i].target);
}

// tests/cli/scripts_test.py has the same hashes, for make_tasks.py.
TEST(MadeTasks, AreTheSameOnEveryPlatform) {
  TaskOptions options = small_options();
  options.is_context_only = true;
  const auto hash = [](const std::vector<Task>& tasks) {
    traces::Sha256 sha256;
    for (const Task& task : tasks) sha256.update(text_line(task));
    return sha256.hexadecimal();
  };
  const Prose prose = prose_of(prose_text("\u00e9"));
  EXPECT_EQ(hash(needle_tasks(prose, options)),
            "c187f38f525db559f12367abd1f3f82caa6b67bb95bc995b35004ee053887097");
  EXPECT_EQ(hash(continuation_tasks(prose, options)),
            "a0f3160f0e9640a054f45c1d0d35af5a8b486d988484be10ba38c4296a33ff79");
}

}  // namespace
}  // namespace kvbound::sim::make_tasks_test
