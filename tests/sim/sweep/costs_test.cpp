// Estimated costs of items, and the order that they give.
#include <filesystem>

#include <gtest/gtest.h>

#include <kvbound/sim/sweep/schedule.hpp>
#include <kvbound/sim/sweep/worker.hpp>

#include "support/sweep_case.hpp"

namespace kvbound::sim::costs_test {
namespace {

TEST(Costs, AreTokensTimesHeadsTimesRunsWhereNothingIsMeasured) {
  const test::SweepCase scratch;
  const Sweep sweep = scratch.sweep(test::SweepCase::kPolicies, R"(, "layers_per_item": 2)");
  const std::vector<SweepItem> items = items_of(sweep);
  EXPECT_FALSE(CostRates{}.known());
  EXPECT_DOUBLE_EQ(ItemCosts(CostRates{}, sweep).of(items[0]), 2 * 42 * 4 * 6);
  EXPECT_DOUBLE_EQ(ItemCosts(CostRates{}, sweep).of(items[1]), 1 * 42 * 4 * 6);
}

TEST(Costs, AreThoseOfFinishedItemsOfTheSamePolicies) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const Sweep sweep = scratch.sweep(R"("tova", "snapkv:window=4")");
  const PlannedItem first = schedule(folder, sweep, {}).front();
  ItemResult result = compute(sweep, first.item);
  for (RunPart& run : result.runs) {
    run.compress_seconds = run.key.starts_with("tova") ? 42 : 84;
    run.step_seconds = 4 * 42;
  }
  result.seconds = 2 * (42 + 168) + 2 * (84 + 168) + 4 * 168;
  folder.keep_result(first.file, result);
  const CostRates rates = measured_rates(folder, sweep);
  EXPECT_EQ(rates.measured, 1);
  EXPECT_DOUBLE_EQ(rates.runs.at(key_of(sweep.runs[0])), (42.0 + 168) / (42 * 4));
  EXPECT_DOUBLE_EQ(rates.other, 1);
  EXPECT_NEAR(ItemCosts(rates, sweep).of(first.item), result.seconds, 1e-9);
  keep_rates(folder, rates);
  EXPECT_EQ(kept_rates(folder).runs, rates.runs);
  folder.keep_note("rates.json", "{");
  EXPECT_FALSE(kept_rates(folder).known());
  std::filesystem::remove(scratch.path("s/rates.json"));
  std::filesystem::create_directory(scratch.path("s/rates.json"));
  EXPECT_FALSE(kept_rates(folder).known()) << "a folder";
}

TEST(Schedules, BeginWithTheLargestItemsAndKeepTheOrderOfEqualOnes) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const Sweep sweep = scratch.sweep(test::SweepCase::kPolicies, R"(, "layers_per_item": 2)");
  std::vector<int64_t> numbers;
  for (const PlannedItem& item : schedule(folder, sweep, {})) numbers.push_back(item.number);
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 2, 1})) << "two layers of a, two of b, the third of a";
}

}  // namespace
}  // namespace kvbound::sim::costs_test
