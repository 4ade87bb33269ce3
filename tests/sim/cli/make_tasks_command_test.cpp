// The options of `kvbound evaluate --make`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/cli/make_tasks_command.hpp>
#include <kvbound/sim/evaluate/tasks.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::make_tasks_command_test {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kText = "traces/samples/LICENSE.Apache-2.0";

/// Runs the command with these arguments.
int run(const Arguments& arguments) {
  CommandLine line("evaluate", "");
  add_make_options(line);
  line.parse(arguments);
  return make_tasks(line);
}

std::vector<Task> tasks_of(Arguments arguments) {
  const TemporaryFolder folder;
  const std::string out = folder.path("tasks.jsonl");
  arguments.insert(arguments.end(), {"--text", kText, out});
  EXPECT_EQ(run(arguments), kPass);
  return read_tasks(out, 256);
}

std::string refusal(Arguments arguments) {
  const TemporaryFolder folder;
  arguments.insert(arguments.end(), {"--text", kText, folder.path("tasks.jsonl")});
  const std::string message = message_of<UsageError>([&] { run(arguments); });
  EXPECT_EQ(folder.size(), 0);
  return message;
}

std::vector<double> depths_of(const std::vector<Task>& tasks) {
  std::vector<double> depths;
  for (const Task& task : tasks) depths.push_back(task.depth.value());
  return depths;
}

TEST(MakeTasksCommand, HasTheDefaultsThatItsHelpSays) {
  const auto needles = tasks_of({"--make", "needle"});
  ASSERT_EQ(needles.size(), 20U);
  EXPECT_EQ(needles[0].prompt.size(), 1024U);
  EXPECT_EQ(needles[0].target.size(), 7U);
  const auto continuations = tasks_of({"--make", "continuation", "--seed", "1"});
  ASSERT_EQ(continuations.size(), 20U);
  EXPECT_EQ(continuations[0].target.size(), 64U);
}

TEST(MakeTasksCommand, TakesAllItsOptions) {
  const auto tasks = tasks_of({"--make", "needle", "--lengths", "200,300", "--tasks", "3", "--depths", "2",
                               "--needles", "2", "--answer", "5", "--context-only", "--seed", "7"});
  ASSERT_EQ(tasks.size(), 6U);
  EXPECT_EQ(tasks[3].kind, "context-only-300");
  EXPECT_EQ(tasks[3].target.size(), 5U);
  EXPECT_LT(tasks[3].compress_at, 300);
  EXPECT_THAT(depths_of(tasks), ElementsAre(0, 1, 0, 0, 1, 0));
  const auto continuations = tasks_of({"--make", "continuation", "--continuation", "9", "--tasks", "1"});
  EXPECT_EQ(continuations.at(0).target.size(), 9U);
}

TEST(MakeTasksCommand, TakesDepthsAsACountOrAsPercentages) {
  const auto depths = [](const std::string& said) {
    return depths_of(tasks_of({"--make", "needle", "--tasks", "3", "--depths", said}));
  };
  EXPECT_THAT(depths("1"), ElementsAre(0.5, 0.5, 0.5));
  EXPECT_THAT(depths("3"), ElementsAre(0, 0.5, 1));
  EXPECT_THAT(depths("10%,12.5%,100%"), ElementsAre(0.1, 0.125, 1));
  EXPECT_THAT(depths("-0%"), ElementsAre(0, 0, 0));
}

TEST(MakeTasksCommand, RefusesOptionsThatDoNotDo) {
  EXPECT_EQ(refusal({"--make", "neeedle"}), "--make 'neeedle': expected needle or continuation");
  EXPECT_EQ(refusal({"--make", "needle", "--continuation", "3"}),
            "--continuation does not belong to --make needle");
  EXPECT_EQ(refusal({"--make", "continuation", "--context-only"}),
            "--context-only does not belong to --make continuation");
  EXPECT_EQ(refusal({"--make", "needle", "--lengths", "92"}),
            "--lengths '92': expected integers from 93 to 4194304");
  EXPECT_EQ(refusal({"--make", "needle", "--lengths", "200,200"}), "--lengths: 200 is there twice");
  for (const char* length : {"", "200,", "x", "-5", "1e3", "4194305"}) {
    EXPECT_THAT(refusal({"--make", "needle", "--lengths", length}), HasSubstr("--lengths")) << length;
  }
  for (const char* depth : {"", "0", "-1", "x", "10%,20", "101%", "-1%", "nan%", "inf%", "%", "10%,"}) {
    EXPECT_THAT(refusal({"--make", "needle", "--depths", depth}), HasSubstr("--depths")) << depth;
  }
  for (const char* digits : {"1", "13", "x"}) {
    EXPECT_THAT(refusal({"--make", "needle", "--answer", digits}), HasSubstr("--answer")) << digits;
  }
  for (const char* option : {"tasks", "needles", "seed"}) {
    EXPECT_THAT(refusal({"--make", "needle", std::string("--") + option, "-1"}), HasSubstr(option));
  }
  EXPECT_THAT(refusal({"--make", "continuation", "--continuation", "1"}), HasSubstr("--continuation '1'"));
}

TEST(MakeTasksCommand, RefusesToReplaceItsText) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", "prose");
  EXPECT_THAT(message_of<UsageError>([&] {
                run({"--make", "needle", "--text", text, text});
              }),
              HasSubstr("is an input"));
  EXPECT_THAT(message_of<UsageError>([&] {
                run({"--make", "needle", text});
              }),
              HasSubstr("--text is missing"));
  EXPECT_THAT(message_of<UsageError>([&] {
                run({"--make", "needle", "--text", text});
              }),
              HasSubstr("TASKS is missing"));
}

TEST(MakeTasksCommand, LeavesNoFileBehindWhenTheTextDoesNotDo) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", "prose"), out = folder.path("out");
  EXPECT_THAT(message_of<TraceError>([&] {
                run({"--make", "needle", "--text", text, out});
              }),
              HasSubstr("the text ends after 5 bytes; expected at least 1024"));
  EXPECT_EQ(folder.size(), 1);
}

}  // namespace
}  // namespace kvbound::sim::make_tasks_command_test
