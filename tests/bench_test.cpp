#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <kvbound/sim/bench.hpp>
#include <kvbound/sim/command_line.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim {
namespace {

TEST(Spread, IsMedianLeastAndMost) {
  const auto list = [](std::vector<double> numbers) {
    const Spread result = spread(numbers);
    return std::vector{result.median, result.least, result.most};
  };
  EXPECT_EQ(list({7}), (std::vector<double>{7, 7, 7}));
  EXPECT_EQ(list({3, 9, 1}), (std::vector<double>{3, 1, 9}));
  EXPECT_EQ(list({8, 1, 2, 4}), (std::vector<double>{3, 1, 8}));
}

TEST(BenchShape, IsAKnownLayerWithAnyNumberOfTokens) {
  const BenchShape shape = parse_bench_shape("llama-3.1-8b:32768");
  EXPECT_EQ(shape.layer, (LayerShape{32, 8, 128, 4096}));
  EXPECT_EQ(shape.tokens, 32768);
  EXPECT_EQ(shape.cube, 2048);
  EXPECT_EQ(parse_bench_shape("pocket:256").layer, (LayerShape{8, 2, 64, 256}));
  EXPECT_EQ(test::message_of<UsageError>([] { parse_bench_shape("pocket"); }),
            "--shape 'pocket': known shapes: llama-3.1-8b:TOKENS, pocket:TOKENS, with 256 to 131072 tokens");
}

// Two pieces that only write down that they ran.
struct Recorder {
  std::vector<BenchPiece> pieces() {
    return {{"one", 10, "scores", [this] { ran += '1'; }}, {"two", 20, "scores", [this] { ran += '2'; }}};
  }
  std::string ran;
};

TEST(Measure, TimesAllPiecesInEveryRoundAfterOneToWarmUp) {
  Recorder recorder;
  int ratios = 0;
  const BenchResult result = measure(recorder.pieces(), {3, 1e9}, [&](std::span<const double> seconds) {
    EXPECT_EQ(seconds.size(), 2u);
    return static_cast<double>(++ratios);
  });
  EXPECT_EQ(recorder.ran, "12121212");
  EXPECT_EQ(result.ratios, (std::vector<double>{1, 2, 3}));
  ASSERT_EQ(result.times.size(), 2u);
  EXPECT_EQ(result.times[1].name, "two");
  EXPECT_EQ(result.times[1].work, 20);
  EXPECT_EQ(result.times[1].seconds.size(), 3u);
}

TEST(Measure, CountsTheFirstRoundIfTimeIsUpAfterIt) {
  Recorder recorder;
  const BenchResult result = measure(recorder.pieces(), {5, 0}, [](std::span<const double>) { return 1.0; });
  EXPECT_EQ(recorder.ran, "12");
  EXPECT_EQ(result.times[0].seconds.size(), 1u);
  EXPECT_EQ(result.ratios.size(), 1u);
}

TEST(BenchResult, MeetsItsGoalByTheMedianRatio) {
  BenchResult result;
  EXPECT_EQ(result.met(), std::nullopt);
  result.goal = BenchGoal{2, false};
  EXPECT_EQ(result.met(), std::nullopt) << "nothing was measured";
  result.ratios = {1, 2, 9};
  EXPECT_EQ(result.met(), true) << "at most 2";
  result.goal->at_least = true;
  EXPECT_EQ(result.met(), true) << "at least 2";
  result.ratios = {1, 1.5, 9};
  EXPECT_EQ(result.met(), false);
  result.ratios = {2.5};
  result.goal->at_least = false;
  EXPECT_EQ(result.met(), false);
}

TEST(BenchOperations, AreKnownByName) {
  std::vector<std::string> names;
  for (const BenchOperation& operation : bench_operations()) names.emplace_back(operation.name);
  EXPECT_EQ(names, (std::vector<std::string>{"exponential", "projected-value-norms", "window-attention",
                                             "selection", "compress"}));
}

}  // namespace
}  // namespace kvbound::sim
