// The task files of sim/evaluate/tasks are what their README says.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include <kvbound/sim/evaluate/tasks.hpp>

namespace kvbound::sim::shipped_tasks_test {
namespace {

constexpr const char* kPocket = "sim/evaluate/tasks/pocket.jsonl";
constexpr const char* kSmolLm2 = "sim/evaluate/tasks/smollm2-135m.jsonl";
constexpr int64_t kPocketVocabulary = 256, kSmolLm2Vocabulary = 49152;

using Counts = std::map<std::string, int>;

Counts kinds_in(const std::vector<Task>& tasks) {
  Counts kinds;
  for (const Task& task : tasks) ++kinds[task.kind];
  return kinds;
}

/// The tasks of a kind, in the file's order.
std::vector<Task> of_kind(const std::vector<Task>& tasks, const std::string& kind) {
  std::vector<Task> found;
  std::ranges::copy_if(tasks, std::back_inserter(found), [&](const Task& task) { return task.kind == kind; });
  return found;
}

void expect_pairs(const std::vector<Task>& tasks, const std::string& length) {
  const auto whole = of_kind(tasks, "needle-" + length), context = of_kind(tasks, "context-only-" + length);
  ASSERT_EQ(whole.size(), context.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(std::to_string(whole[i].prompt.size()), length);
    EXPECT_EQ(whole[i].prompt, context[i].prompt);
    EXPECT_EQ(whole[i].target, context[i].target);
    EXPECT_EQ(whole[i].depth, context[i].depth);
    EXPECT_TRUE(whole[i].is_answer && context[i].is_answer && whole[i].depth);
    EXPECT_EQ(whole[i].compress_at, std::ssize(whole[i].prompt));
    EXPECT_LT(context[i].compress_at, std::ssize(whole[i].prompt));
  }
}

void expect_continuations(const std::vector<Task>& tasks, size_t prompt, size_t target) {
  for (const Task& task : of_kind(tasks, "continuation-" + std::to_string(prompt))) {
    EXPECT_EQ(task.prompt.size(), prompt);
    EXPECT_EQ(task.target.size(), target);
    EXPECT_FALSE(task.is_answer);
  }
}

TEST(ShippedTasks, OfPocketAreWhatTheirReadmeSays) {
  const auto tasks = read_tasks(kPocket, kPocketVocabulary);
  EXPECT_EQ(kinds_in(tasks), (Counts{{"needle-1024", 20},
                                     {"needle-1536", 20},
                                     {"context-only-1024", 20},
                                     {"context-only-1536", 20},
                                     {"continuation-1024", 64}}));
  expect_pairs(tasks, "1024");
  expect_pairs(tasks, "1536");
  expect_continuations(tasks, 1024, 64);
}

TEST(ShippedTasks, OfPocketHoldTheirAnswers) {
  for (const Task& task : read_tasks(kPocket, kPocketVocabulary)) {
    if (!task.is_answer) continue;
    EXPECT_EQ(task.target.size(), 7U);
    EXPECT_NE(std::ranges::search(task.prompt, task.target).begin(), task.prompt.end()) << task.id;
  }
}

TEST(ShippedTasks, OfSmolLm2AreWhatTheirReadmeSays) {
  const auto tasks = read_tasks(kSmolLm2, kSmolLm2Vocabulary);
  EXPECT_EQ(kinds_in(tasks),
            (Counts{{"needle-2048", 12}, {"context-only-2048", 12}, {"continuation-2048", 8}}));
  expect_pairs(tasks, "2048");
  expect_continuations(tasks, 2048, 128);
  for (const Task& task : tasks) {
    if (!task.is_answer) continue;
    EXPECT_EQ(task.target.size(), 6U) << "a space and five digits";
    EXPECT_NE(std::ranges::search(task.prompt, task.target).begin(), task.prompt.end()) << task.id;
  }
}

}  // namespace
}  // namespace kvbound::sim::shipped_tasks_test
