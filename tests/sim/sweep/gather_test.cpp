// Gathered results are those of one replay, however the work was split and in whatever order it was done.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/sim/figures/csv.hpp>
#include <kvbound/sim/figures/document.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/sweep/gather.hpp>
#include <kvbound/sim/sweep/schedule.hpp>
#include <kvbound/sim/sweep/worker.hpp>

#include "support/sweep_case.hpp"

namespace kvbound::sim::gather_test {
namespace {

ReplayReport without_times(ReplayReport report) {
  report.result.times.clear();
  for (RunResult& run : report.result.runs) run.compress_seconds = run.step_seconds = 0;
  return report;
}

// JSON and CSV of all traces, without times.
std::string text_of_reports(const std::vector<ReplayReport>& reports, const Sweep& sweep) {
  std::string text;
  DocumentWriter json("replay", [&](std::string_view more) { text += more; });
  for (const ReplayReport& report : reports) {
    const Part part = replay_part(without_times(report), sweep.base, ReplayDetail::rows);
    json.add(part);
    text += csv_headings(part) + csv_rows(part);
  }
  json.finish(provenance());
  return text;
}

std::string replayed(const Sweep& sweep) {
  std::vector<ReplayReport> reports;
  for (const SweepTrace& trace : sweep.traces)
    reports.push_back({replay(traces::Trace(trace.file), sweep.runs, trace.scope), trace.sha256});
  return text_of_reports(reports, sweep);
}

std::string gathered(const SweepFolder& folder, const Sweep& sweep, bool mixed = false) {
  Gathering gathering(folder, sweep, mixed);
  std::vector<ReplayReport> reports;
  for (size_t t = 0; t < sweep.traces.size(); ++t) reports.push_back(gathering.trace(t));
  return text_of_reports(reports, sweep);
}

void work_all(const SweepFolder& folder, const Sweep& sweep) {
  work(folder, sweep, schedule(folder, sweep, {}), {}, [](const ItemReport&) {});
}

TEST(Gathered, ResultsAreThoseOfOneReplayHoweverTheWorkWasSplit) {
  for (const char* more :
       {"", R"(, "layers_per_item": 2)", R"(, "policies_per_item": 1)",
        R"(, "policies_per_item": 2, "layers_per_item": 2, "base": "tova")",
        R"(, "backends": ["reference", "emulated"], "merge_bounds": true, "steps": 1)",
        R"(, "backends": ["emulated", "reference"], "policies_per_item": 1, "layers": "1")"}) {
    const test::SweepCase scratch;
    const SweepFolder folder(scratch.path("s"));
    folder.make();
    const Sweep sweep = scratch.sweep(test::SweepCase::kPolicies, more);
    work_all(folder, sweep);
    EXPECT_EQ(gathered(folder, sweep), replayed(sweep)) << more;
  }
}

TEST(Gathered, ResultsDoNotDependOnTheOrderOfTheWork) {
  const test::SweepCase scratch;
  const Sweep sweep = scratch.sweep(test::SweepCase::kPolicies, R"(, "policies_per_item": 1)");
  const std::string expected = replayed(sweep);
  std::mt19937 engine(1);
  for (int i = 0; i < 3; ++i) {
    const SweepFolder folder(scratch.path("s" + std::to_string(i)));
    folder.make();
    std::vector<PlannedItem> items = schedule(folder, sweep, {});
    std::ranges::shuffle(items, engine);
    work(folder, sweep, items, {}, [](const ItemReport&) {});
    EXPECT_EQ(gathered(folder, sweep), expected);
  }
}

TEST(Gathered, MissingItemsAreNamedAndTheirTracesAreNotWhole) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const Sweep sweep = scratch.sweep();
  std::vector<PlannedItem> items = schedule(folder, sweep, {});
  const PlannedItem last = items.back();
  items.pop_back();
  work(folder, sweep, items, {}, [](const ItemReport&) {});
  folder.keep_attempts(last.file, {{"h", 1, "no luck"}});
  const Gathering gathering(folder, sweep, false);
  ASSERT_EQ(gathering.missing().size(), 1);
  const MissingItem& missing = gathering.missing().front();
  EXPECT_EQ(missing.item.trace, last.item.trace);
  EXPECT_EQ(missing.item.layers, last.item.layers);
  EXPECT_EQ(missing.attempts.front().problem, "no luck");
  EXPECT_FALSE(missing.other_computation);
  EXPECT_FALSE(gathering.is_whole(last.item.trace));
  EXPECT_TRUE(gathering.is_whole(1 - last.item.trace));
}

TEST(Gathered, SweepsThatWereExtendedComputeWhatIsNewAlone) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const Sweep less = scratch.sweep(R"("snapkv:window=4", "tova")"),
              more =
                  scratch.sweep(R"("tova", "h2o:window=4+keepkv", "snapkv:window=4")", R"(, "base": "tova")");
  work_all(folder, less);
  const std::vector<PlannedItem> rest = schedule(folder, more, {});
  for (const PlannedItem& item : rest) {
    EXPECT_FALSE(item.done);
    ASSERT_EQ(item.item.runs->size(), 2) << "one policy at two budgets";
    EXPECT_EQ(more.runs[item.item.runs->front()].policy.label, "h2o:window=4+keepkv");
  }
  EXPECT_EQ(Gathering(folder, more, false).missing().size(), 5);
  work_all(folder, more);
  EXPECT_EQ(gathered(folder, more), replayed(more));
  EXPECT_EQ(gathered(folder, less), replayed(less));
  for (const PlannedItem& item : schedule(folder, more, {})) EXPECT_TRUE(item.done);
}

TEST(Gathered, ResultsOfOtherBuildsAreTakenOnlyIfTheyMayBeMixed) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const Sweep sweep = scratch.sweep();
  work_all(folder, sweep);
  Sweep later = sweep;
  later.computation.build = "a later one";
  const Gathering strict(folder, later, false);
  ASSERT_EQ(strict.missing().size(), 5);
  for (const MissingItem& missing : strict.missing()) EXPECT_TRUE(missing.other_computation);
  EXPECT_TRUE(Gathering(folder, later, true).missing().empty());
  EXPECT_EQ(gathered(folder, later, true), replayed(sweep));
}

TEST(Gathered, EnvironmentsNameAllMachines) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const Sweep sweep = scratch.sweep();
  for (const PlannedItem& item : schedule(folder, sweep, {})) {
    ItemResult result = compute(sweep, item.item);
    result.environment.device = item.number % 2 == 0 ? "one" : "other";
    result.environment.threads = item.number;
    folder.keep_result(item.file, result);
  }
  Gathering gathering(folder, sweep, false);
  for (size_t t = 0; t < 2; ++t) gathering.trace(t);
  EXPECT_EQ(gathering.environment().device, "one; other");
  EXPECT_EQ(gathering.environment().threads, 4);
  EXPECT_EQ(gathering.environment().version, version());
}

}  // namespace
}  // namespace kvbound::sim::gather_test
