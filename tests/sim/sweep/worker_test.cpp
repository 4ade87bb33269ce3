// Workers: every item is computed once, failed ones are tried again and given up, and
// results are those of a replay.
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/sweep/worker.hpp>

#include "support/message_of.hpp"
#include "support/sweep_case.hpp"

namespace kvbound::sim::worker_test {
namespace {

using ::testing::HasSubstr;

class Workers : public ::testing::Test {
 protected:
  Workers() : folder_(scratch_.path("s")), sweep_(scratch_.sweep()) { folder_.make(); }

  // What a worker reports.
  std::vector<ItemReport> worked(const WorkerOptions& options = {}) {
    items_ = schedule(folder_, sweep_, {});
    std::vector<ItemReport> reports;
    work(folder_, sweep_, items_, options, [&](const ItemReport& report) { reports.push_back(report); });
    return reports;
  }

  test::SweepCase scratch_;
  SweepFolder folder_;
  Sweep sweep_;
  std::vector<PlannedItem> items_;  // reports point to them
};

TEST_F(Workers, ComputeEveryItemOnce) {
  const std::vector<ItemReport> reports = worked();
  EXPECT_EQ(reports.size(), 5);
  EXPECT_EQ(folder_.results().size(), 5);
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path("s/attempts")));
  EXPECT_TRUE(worked().empty()) << "all is done";
}

TEST_F(Workers, BeginWithTheirShareAndThenHelpOthers) {
  std::map<int64_t, std::vector<int64_t>> orders;
  for (const int64_t index : {0, 1}) {
    for (const ItemReport& report : worked({index, 2})) orders[index].push_back(report.item->number);
    std::filesystem::remove_all(scratch_.path("s/results"));
  }
  ASSERT_EQ(orders[0].size(), 5);
  ASSERT_EQ(orders[1].size(), 5);
  EXPECT_EQ(std::vector(orders[0].begin(), orders[0].begin() + 3), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(std::vector(orders[1].begin(), orders[1].begin() + 2), (std::vector<int64_t>{1, 3}));
}

TEST_F(Workers, PassOverItemsThatOthersCompute) {
  const std::vector<PlannedItem> items = schedule(folder_, sweep_, {});
  const SweepFolder other(scratch_.path("s"));
  const auto claim = other.claim(items[2].file);
  EXPECT_EQ(worked().size(), 4);
  EXPECT_FALSE(folder_.has(items[2].file));
}

TEST_F(Workers, GiveUpItemsWhoseTraceVanishedAndGoOn) {
  std::filesystem::remove(scratch_.path("b.safetensors"));
  int64_t done = 0;
  for (const ItemReport& report : worked({.retries = 1})) {
    if (report.attempts.empty()) {
      ++done;
      continue;
    }
    ASSERT_EQ(report.attempts.size(), 2) << "one try and one retry";
    EXPECT_EQ(report.item->item.trace, 1);
    EXPECT_THAT(*report.attempts.back().problem, HasSubstr("b.safetensors"));
  }
  EXPECT_EQ(done, 3);
  EXPECT_EQ(folder_.results().size(), 3);
}

TEST_F(Workers, CountTriesWhoseProcessWasKilled) {
  const std::string file = schedule(folder_, sweep_, {}).front().file, host = host_name();
  folder_.keep_attempts(file, {{host, 1, "once"}, {host, 2, std::nullopt}});
  EXPECT_EQ(worked({.retries = 2}).size(), 5);
  EXPECT_TRUE(folder_.has(file)) << "there was one try left";
  std::filesystem::remove_all(scratch_.path("s/results"));
  folder_.keep_attempts(file, {{host, 1, "once"}, {host, 2, "twice"}, {host, 3, std::nullopt}});
  const std::vector<ItemReport> reports = worked({.retries = 2});
  const auto given_up =
      std::ranges::find_if(reports, [](const ItemReport& report) { return !report.attempts.empty(); });
  ASSERT_NE(given_up, reports.end());
  EXPECT_EQ(given_up->item->file, file);
  EXPECT_EQ(given_up->attempts.back().problem, "its process was killed");
  EXPECT_FALSE(folder_.has(file));
}

TEST_F(Workers, TryWhatAnotherMachineCouldNotButNotWhatThreeCouldNot) {
  const std::vector<PlannedItem> items = schedule(folder_, sweep_, {});
  std::vector<Attempt> of_one(3, {"one", 1, "no such file"}), of_three;
  for (const char* host : {"one", "two", "three"})
    of_three.insert(of_three.end(), 3, {host, 1, "no such file"});
  folder_.keep_attempts(items[0].file, of_one);
  folder_.keep_attempts(items[1].file, of_three);
  worked({.retries = 2});
  EXPECT_TRUE(folder_.has(items[0].file));
  EXPECT_FALSE(folder_.has(items[1].file));
}

TEST_F(Workers, DoNotBlameItemsForAFolderThatCannotBeWritten) {
  const std::vector<PlannedItem> items = schedule(folder_, sweep_, {});
  std::filesystem::remove_all(scratch_.path("s/results"));
  scratch_.write("s/results", "a file, where the folder of all results should be");
  EXPECT_THAT(test::message_of<IoError>([&] { work(folder_, sweep_, items, {}, [](const ItemReport&) {}); }),
              HasSubstr("make the folder"));
  EXPECT_TRUE(folder_.attempts(items.front().file).empty());
}

TEST_F(Workers, DoNotComputeWithAnotherBuildThanTheSweeps) {
  sweep_.computation.build = "another";
  EXPECT_THAT(test::message_of<TraceError>([&] { worked(); }), HasSubstr("build: is \""));
  EXPECT_TRUE(folder_.results().empty());
}

TEST_F(Workers, HaveTheNumbersOfAReplay) {
  const SweepItem item = items_of(sweep_)[1];
  const ItemResult result = compute(sweep_, item);
  Scope scope = sweep_.traces[0].scope;
  const ReplayResult replayed = replay(traces::Trace(sweep_.traces[0].file), sweep_.runs, scope);
  ASSERT_EQ(result.runs.size(), replayed.runs.size());
  for (size_t r = 0; r < result.runs.size(); ++r) {
    EXPECT_EQ(result.runs[r].key, key_of(sweep_.runs[r]));
    const VectorView found = result.runs[r].layers.front().perturbation.numbers(),
                     expected = replayed.runs[r].layers[1].perturbation.numbers();
    EXPECT_TRUE(std::ranges::equal(found, expected));
  }
}

}  // namespace
}  // namespace kvbound::sim::worker_test
