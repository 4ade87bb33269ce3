// The folder of a sweep: claims exclude each other and end with their process, results are
// whole, tries are remembered.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/sweep/sweep_folder.hpp>

#include "support/message_of.hpp"
#include "support/sweep_case.hpp"

namespace kvbound::sim::sweep_folder_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(SweepFolders, GiveAnItemToOneAtATime) {
  const test::TemporaryFolder scratch;
  const SweepFolder one(scratch.path("s")), other(scratch.path("s"));
  one.make();
  {
    const auto claim = one.claim("item");
    ASSERT_TRUE(claim);
    EXPECT_FALSE(other.claim("item"));
    EXPECT_TRUE(other.claim("another item"));
  }
  EXPECT_TRUE(other.claim("item")) << "the claim ended with its object";
}

TEST(SweepFolders, GiveAnItemToAnotherWhenItsProcessWasKilled) {
  const test::TemporaryFolder scratch;
  const std::string path = scratch.path("s");
  const SweepFolder folder(path);
  folder.make();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const SweepFolder own(path);
    const auto claim = own.claim("item");
    const char done = claim ? 'y' : 'n';
    if (write(ready[1], &done, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char claimed = 0;
  ASSERT_EQ(read(ready[0], &claimed, 1), 1);
  EXPECT_EQ(claimed, 'y');
  EXPECT_FALSE(folder.claim("item"));
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(folder.claim("item"));
  close(ready[0]);
  close(ready[1]);
}

TEST(SweepFolders, KeepTheLatestSweepAndEarlierOnesByHash) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  EXPECT_FALSE(SweepFolder::is_one(scratch.path("s")));
  const Sweep first = scratch.sweep(), second = scratch.sweep(R"("tova")");
  const std::string hash = folder.keep_sweep(first);
  EXPECT_TRUE(SweepFolder::is_one(scratch.path("s")));
  EXPECT_NE(folder.keep_sweep(second), hash);
  EXPECT_EQ(text_of(folder.sweep()), text_of(second));
  EXPECT_EQ(text_of(folder.sweep(hash)), text_of(first));
  EXPECT_THAT(test::message_of<IoError>([&] { folder.sweep("0123"); }), HasSubstr("0123.json"));
  scratch.write("s/plans/" + hash + ".json", text_of(second));
  EXPECT_THAT(test::message_of<TraceError>([&] { folder.sweep(hash); }), HasSubstr("its hash is another"));
}

TEST(SweepFolders, KnowWhatHashesAre) {
  EXPECT_TRUE(SweepFolder::is_hash(std::string(64, 'a')));
  for (const std::string& text : {std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'A'),
                                  std::string(63, '0') + "\n", "../" + std::string(61, '0'), std::string()})
    EXPECT_FALSE(SweepFolder::is_hash(text)) << text;
}

TEST(SweepFolders, KeepTriesWholeOrNotAtAll) {
  const test::TemporaryFolder scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  EXPECT_THROW(folder.keep_attempts(std::string(256, 'a'), {{"h", 5, std::nullopt}}), IoError);
  EXPECT_TRUE(fs::is_empty(scratch.path("s/attempts")));
}

TEST(SweepFolders, ReplaceWhatIsNoFileOrNoFolder) {
  const test::TemporaryFolder scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const auto put_folder = [&](const std::string& name) {
    fs::remove_all(scratch.path(name));
    fs::create_directories(scratch.path(name + "/inside"));
  };
  put_folder("s/attempts/a");
  EXPECT_EQ(folder.attempts("a").size(), 1) << "a damaged one was a try, too";
  folder.keep_attempts("a", {{"h", 5, "no"}, {"h", 6, "no"}});
  EXPECT_EQ(folder.attempts("a").size(), 2);
  put_folder("s/attempts/a");
  folder.forget_attempts();
  EXPECT_FALSE(fs::exists(scratch.path("s/attempts/a")));

  const test::SweepCase planned;
  const Sweep sweep = planned.sweep();
  const std::string plan = scratch.path("s/plans/" + folder.keep_sweep(sweep) + ".json");
  fs::remove(plan);
  ASSERT_EQ(mkfifo(plan.c_str(), 0600), 0);
  folder.keep_sweep(sweep);
  EXPECT_TRUE(fs::is_regular_file(plan));
  put_folder("s/plan.json");
  EXPECT_THAT(test::message_of<IoError>([&] { folder.keep_sweep(sweep); }),
              HasSubstr("plan.json: it is no regular file"));

  put_folder("s/rates.json");
  folder.keep_note("rates.json", "{}");
  EXPECT_EQ(folder.note("rates.json"), "{}");

  ItemResult result;
  result.host = "h";
  scratch.write("s/results/ab", "a file");
  put_folder("s/runs/1");
  EXPECT_FALSE(folder.has("ab-1"));
  folder.keep_result("ab-1", result);
  EXPECT_EQ(folder.result("ab-1").host, "h");
  put_folder("s/results/ab/ab-1");
  folder.keep_result("ab-1", result);
  EXPECT_EQ(folder.result("ab-1").host, "h");
}

TEST(SweepFolders, ListWholeResultsAlone) {
  const test::TemporaryFolder scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  EXPECT_TRUE(folder.results().empty());
  ItemResult result;
  result.host = "h";
  folder.keep_result("ab-1", result);
  folder.keep_result("cd-2", result);
  scratch.write("s/results/ab/.ab-1.77-0.tmp", "half");
  EXPECT_EQ(folder.results(), (std::unordered_set<std::string>{"ab-1", "cd-2"}));
  EXPECT_TRUE(folder.has("ab-1"));
  EXPECT_FALSE(folder.has("ab-2"));
  EXPECT_EQ(folder.result("cd-2").host, "h");
  folder.remove_unfinished("ab-1");
  EXPECT_FALSE(fs::exists(scratch.path("s/results/ab/.ab-1.77-0.tmp")));
  EXPECT_TRUE(folder.has("ab-1"));
  scratch.write("s/results/ab/ab-3", "torn");
  EXPECT_THAT(test::message_of<TraceError>([&] { folder.result("ab-3"); }),
              HasSubstr("ab-3: is no result of a sweep"));
}

TEST(SweepFolders, RememberTriesUntilTheyAreForgotten) {
  const test::TemporaryFolder scratch;
  const SweepFolder folder(scratch.path("s")), other(scratch.path("s"));
  folder.make();
  EXPECT_TRUE(folder.attempts("a").empty());
  folder.keep_attempts("a", {{"h", 5, "no such file"}, {"i", 6, std::nullopt}});
  folder.keep_attempts("b", {{"h", 5, std::nullopt}});
  const std::vector<Attempt> attempts = other.attempts("a");
  ASSERT_EQ(attempts.size(), 2);
  EXPECT_EQ(attempts[0].problem, "no such file");
  EXPECT_EQ(attempts[1].process, 6);
  EXPECT_FALSE(attempts[1].problem);
  {
    const auto claim = other.claim("b");
    folder.forget_attempts();
    EXPECT_TRUE(folder.attempts("a").empty());
    EXPECT_EQ(folder.attempts("b").size(), 1) << "somebody computes it now";
  }
  folder.forget_attempts();
  EXPECT_TRUE(folder.attempts("b").empty());
  scratch.write("s/attempts/c", "[{\"host\": \"h");
  EXPECT_EQ(folder.attempts("c").size(), 1) << "a torn one was a try, too";
}

}  // namespace
}  // namespace kvbound::sim::sweep_folder_test
