#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/product.hpp>
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
  EXPECT_TRUE(result.warm_up);
  EXPECT_EQ(result.ratios, (std::vector<double>{1, 2, 3}));
  ASSERT_EQ(result.times.size(), 2u);
  EXPECT_EQ(result.times[1].name, "two");
  EXPECT_EQ(result.times[1].work, 20);
  EXPECT_EQ(result.times[1].seconds.size(), 3u);
}

TEST(Measure, CountsTheFirstRoundIfItTakesLong) {
  Recorder recorder;
  const auto one = [](std::span<const double>) { return 1.0; };
  const BenchResult result = measure(recorder.pieces(), {std::nullopt, 0}, one);
  EXPECT_EQ(recorder.ran, "1212");
  EXPECT_FALSE(result.warm_up);
  EXPECT_EQ(result.times[0].seconds.size(), 2u);
  EXPECT_EQ(result.ratios.size(), 2u);
}

TEST(Measure, TakesAsManyRoundsAsAskedForWhateverTheTime) {
  Recorder recorder;
  EXPECT_EQ(measure(recorder.pieces(), {4, 0}).times[0].seconds.size(), 4u);
  EXPECT_EQ(recorder.ran, "12121212");
}

TEST(Measure, NeedsNoRatio) {
  Recorder recorder;
  const BenchResult result = measure(recorder.pieces(), {1, 0});
  EXPECT_EQ(result.times[1].seconds.size(), 1u);
  EXPECT_TRUE(result.ratios.empty());
}

TEST(BenchPlan, LeavesOutTheWarmUpAndThenRoundsWhenTheyTakeLong) {
  const BenchRounds rounds{std::nullopt, 60};
  EXPECT_EQ(plan(rounds, 1), (BenchPlan{true, 3, 7}));
  EXPECT_EQ(plan(rounds, 6), (BenchPlan{true, 3, 7}));
  EXPECT_EQ(plan(rounds, 7), (BenchPlan{false, 3, 7}));
  EXPECT_EQ(plan(rounds, 59), (BenchPlan{false, 3, 7}));
  EXPECT_EQ(plan(rounds, 61), (BenchPlan{false, 2, 7}));
}

TEST(BenchPlan, IsWhatWasAskedFor) {
  EXPECT_EQ(plan({5, 60}, 1), (BenchPlan{true, 5, 5}));
  EXPECT_EQ(plan({5, 60}, 1000), (BenchPlan{false, 5, 5}));
  EXPECT_EQ(plan({1, 60}, 1000), (BenchPlan{false, 1, 1}));
}

TEST(DurationText, HasThreeDigitsAndTheUnitThatSuitsThem) {
  EXPECT_EQ(duration_text(1.287), "1.29 s");
  EXPECT_EQ(duration_text(48.13), "48.1 s");
  EXPECT_EQ(duration_text(118.2), "118 s");
  EXPECT_EQ(duration_text(0.1181), "118 ms");
  EXPECT_EQ(duration_text(0.04392), "43.9 ms");
  EXPECT_EQ(duration_text(0.001), "1.00 ms");
  EXPECT_EQ(duration_text(967.2e-6), "967 us");
  EXPECT_EQ(duration_text(1e-6), "1.00 us");
  EXPECT_EQ(duration_text(1e-9), "1.00 ns");
}

TEST(DurationText, TakesTheUnitAfterRounding) {
  EXPECT_EQ(duration_text(0.99996), "1.00 s");
  EXPECT_EQ(duration_text(0.9994), "999 ms");
  EXPECT_EQ(duration_text(999.7e-6), "1.00 ms");
  EXPECT_EQ(duration_text(999.7), "1000 s");
  EXPECT_EQ(duration_text(9.996), "10.0 s");
  EXPECT_EQ(duration_text(99.96e-3), "100 ms");
}

TEST(DurationText, HasNoUnitBelowTheLeast) {
  EXPECT_EQ(duration_text(2.5e-11), "0.0250 ns");
  EXPECT_EQ(duration_text(0), "0.00 ns");
}

TEST(RateText, HasThreeDigits) {
  EXPECT_EQ(rate_text(26.66e9, "FLOP"), "26.7 GFLOP/s");
  EXPECT_EQ(rate_text(118.2e9, "FLOP"), "118 GFLOP/s");
  EXPECT_EQ(rate_text(0.5e9, "FLOP"), "0.500 GFLOP/s");
  EXPECT_EQ(rate_text(7.654e8, "exponentials"), "765 million exponentials/s");
  EXPECT_EQ(rate_text(999.7e3, "scores"), "1.00 million scores/s");
  EXPECT_EQ(rate_text(999.4e3, "scores"), "999000 scores/s");
  EXPECT_EQ(rate_text(0.02079, "layers"), "0.0208 layers/s");
}

TEST(BenchResult, MeetsItsGoalByTheMedianRatio) {
  BenchResult result;
  EXPECT_EQ(result.met(), std::nullopt);
  result.goal = at_most(2);
  EXPECT_EQ(result.met(), std::nullopt) << "nothing was measured";
  result.ratios = {1, 2, 9};
  EXPECT_EQ(result.met(), true) << "at most 2";
  result.goal = at_least(2);
  EXPECT_EQ(result.met(), true) << "at least 2";
  result.ratios = {1, 1.5, 9};
  EXPECT_EQ(result.met(), false);
  result.ratios = {2.5};
  result.goal = at_most(2);
  EXPECT_EQ(result.met(), false);
}

TEST(BenchResult, SaysWhenOnlyTheMedianDecides) {
  BenchResult result;
  EXPECT_EQ(result.verdict(), "");
  result.goal = at_least(2);
  EXPECT_EQ(result.verdict(), "") << "nothing was measured";
  result.ratios = {2, 3, 4};
  EXPECT_EQ(result.verdict(), "met");
  result.ratios = {1.9, 3, 4};
  EXPECT_EQ(result.verdict(), "met by the median");
  result.ratios = {1, 1.9, 4};
  EXPECT_EQ(result.verdict(), "missed by the median");
  result.ratios = {1, 1.5, 1.9};
  EXPECT_EQ(result.verdict(), "missed");
  result.goal = at_most(1.25);
  result.ratios = {1, 1.2, 1.5};
  EXPECT_EQ(result.verdict(), "met by the median");
}

TEST(BlasThreads, AreOneWhereBlasHasNoMore) {
  EXPECT_EQ(blas_threads(1), 1);
  EXPECT_EQ(blas_threads(2), reference::blas_info().flavour == "serial" ? 1 : 2);
}

TEST(BenchOperations, AreKnownByName) {
  std::vector<std::string> names;
  for (const BenchOperation& operation : bench_operations()) names.emplace_back(operation.name);
  EXPECT_EQ(names, (std::vector<std::string>{"exponential", "projected-value-norms", "window-attention",
                                             "selection", "compress"}));
}

}  // namespace
}  // namespace kvbound::sim
