// Simulated sweeps against schedules that are known by hand.
#include <gtest/gtest.h>

#include <kvbound/sim/sweep/simulation.hpp>
#include <kvbound/sim/sweep/worker.hpp>

#include "support/sweep_case.hpp"

namespace kvbound::sim::simulation_test {
namespace {

TEST(Simulations, OfEqualItemsAreWholeRounds) {
  const auto found = simulate({{2.0}, 0.5}, 10, {1, 3, 4, 100}, 1);
  ASSERT_EQ(found.size(), 4);
  EXPECT_DOUBLE_EQ(found[0].makespan, 25);
  EXPECT_DOUBLE_EQ(found[0].bound, 25);
  EXPECT_DOUBLE_EQ(found[1].makespan, 10) << "four rounds";
  EXPECT_DOUBLE_EQ(found[1].bound, 25.0 / 3);
  EXPECT_DOUBLE_EQ(found[2].makespan, 7.5);
  EXPECT_DOUBLE_EQ(found[3].makespan, 2.5) << "no more than one item each";
  EXPECT_DOUBLE_EQ(found[3].bound, 2.5);
}

// In the order given, the last item would begin at 4, and end at 9.
TEST(Simulations, GiveTheLargestItemsOutFirst) {
  EXPECT_DOUBLE_EQ(makespan({1, 1, 3, 3, 5}, 2), 7);
  EXPECT_DOUBLE_EQ(makespan({2, 2, 2, 3, 3}, 2), 7) << "the best would be 6: Graham's bound is 7";
  EXPECT_DOUBLE_EQ(makespan({4}, 3), 4);
  EXPECT_DOUBLE_EQ(makespan({}, 2), 0);
}

TEST(Simulations, AreNoShorterThanTheBound) {
  MeasuredItems measured;
  for (int i = 1; i <= 40; ++i) measured.seconds.push_back(1.0 / i);
  for (const Makespan& found : simulate(measured, 1000, {1, 2, 7, 64, 512}, 3)) {
    EXPECT_GE(found.makespan, found.bound * (1 - 1e-12));
    EXPECT_LE(found.makespan, found.bound + 1)
        << "no worker is idle while items are left, and no item takes longer";
  }
  EXPECT_EQ(simulate(measured, 100, {2}, 3).front().makespan,
            simulate(measured, 100, {2}, 3).front().makespan);
  EXPECT_NE(simulate(measured, 100, {1}, 3).front().makespan,
            simulate(measured, 100, {1}, 4).front().makespan);
}

TEST(Simulations, TakeTheSecondsOfFinishedItems) {
  const test::SweepCase scratch;
  const SweepFolder folder(scratch.path("s"));
  folder.make();
  const Sweep sweep = scratch.sweep();
  EXPECT_TRUE(measured_items(folder, sweep).seconds.empty());
  for (const PlannedItem& item : schedule(folder, sweep, {})) {
    ItemResult result = compute(sweep, item.item);
    result.seconds = 3 + static_cast<double>(item.number);
    folder.keep_result(item.file, result);
  }
  const MeasuredItems measured = measured_items(folder, sweep);
  EXPECT_EQ(measured.seconds, (std::vector<double>{3, 4, 5, 6, 7}));
  EXPECT_GT(measured.overhead, 0);
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path("s")))
    EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path();
}

}  // namespace
}  // namespace kvbound::sim::simulation_test
