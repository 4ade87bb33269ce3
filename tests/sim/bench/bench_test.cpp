#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/bench/bench.hpp>
#include <kvbound/sim/bench/device_work.hpp>
#include <kvbound/sim/options/command_line.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::bench_test {
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
  EXPECT_EQ(parse_bench_shape("mistral-7b:1000").layer, (LayerShape{32, 8, 128, 4096}));
  EXPECT_EQ(parse_bench_shape("qwen2.5-32b:1000").layer, (LayerShape{40, 8, 128, 5120}));
  EXPECT_EQ(test::message_of<UsageError>([] { parse_bench_shape("pocket:255"); }),
            "--shape 'pocket:255': known shapes: llama-3.1-8b:32768, mistral-7b:32768, qwen2.5-32b:32768, "
            "pocket:1984; or with other tokens, 256 to 131072");
}

TEST(BenchShape, HasTokensOfItsOwnWhereNoneAreNamed) {
  EXPECT_EQ(parse_bench_shape("pocket"), parse_bench_shape("pocket:1984"));
  for (const std::string name : {"llama-3.1-8b", "mistral-7b", "qwen2.5-32b"}) {
    EXPECT_EQ(parse_bench_shape(name), parse_bench_shape(name + ":32768"));
  }
  EXPECT_THROW(parse_bench_shape("pocket:"), UsageError);
}

// Two query heads on one KV head, head_dim 4, model_dim 3, 16-bit caches.
constexpr LayerShape kTiny{2, 1, 4, 3};

TEST(DeviceWork, OfAttentionIsTheCacheTheQueriesAndTheResults) {
  // 5 entries: keys and values 2 x 20 numbers, queries 8; output 8, log-sum-exp 2, logits 10; one count.
  const DeviceWork work = attention_work(kTiny, 5);
  EXPECT_EQ(work.bytes, 2 * (40 + 8) + 4 * (8 + 2 + 10) + 8);
  // Per head and entry: 4 products and sums for the logit, 4 for the output.
  EXPECT_EQ(work.flop, 2 * 5 * (2 * 4 + 2 * 4));
}

TEST(DeviceWork, OfTheWindowIsItsQueriesTheKeysAndTheResults) {
  // 3 queries of 2 heads over 5 tokens: keys 20, queries 24 numbers; log-sum-exp 6, means 10.
  const DeviceWork log_sum_exp = window_log_sum_exp_work(kTiny, 3, 5),
                   attention = window_attention_work(kTiny, 3, 5);
  EXPECT_EQ(log_sum_exp.bytes, 2 * (20 + 24) + 4 * 6);
  EXPECT_EQ(attention.bytes, 2 * (20 + 24) + 4 * (6 + 10));
  EXPECT_EQ(log_sum_exp.flop, 2 * 3 * 5 * 2 * 4);
  EXPECT_EQ(attention.flop, 2 * 3 * 5 * 2 * 4);
}

TEST(DeviceWork, OfChangeScoresIsTheWindowTheValuesAndWhatIsKnownOfTheQueries) {
  // 3 queries of 2 heads over 5 tokens: keys and values 2 x 20, queries 24 numbers; outputs 24, log-sum-exps,
  // lengths and scores of dominant entries 6 each, lengths of values and scores 10 each; dominant entries 6.
  const DeviceWork work = window_change_scores_work(kTiny, 3, 5);
  EXPECT_EQ(work.bytes, 2 * (40 + 24) + 4 * (24 + 3 * 6 + 2 * 10) + 8 * 6);
  EXPECT_EQ(work.flop, 2 * 2 * 3 * 5 * 2 * 4);
}

TEST(DeviceWork, OfNearestKeysIsAllKeysTheirLengthsAndTheResults) {
  // 3 of 5 entries leave: keys 20 numbers; lengths 5, cosines 3; positions and results 3 each, 2 counts.
  const DeviceWork work = nearest_keys_work(kTiny, 5, 2);
  EXPECT_EQ(work.bytes, 2 * 20 + 4 * (5 + 3) + 8 * (3 + 3 + 2));
  EXPECT_EQ(work.flop, 2 * 3 * 2 * 4);
}

TEST(DeviceWork, OfNormsIsTheValuesTheProjectionAndTheNorms) {
  // 5 tokens: values 20 numbers, two heads' W^O 2 x 12; norms 10.
  const DeviceWork work = projected_value_norms_work(kTiny, 5);
  EXPECT_EQ(work.bytes, 2 * (20 + 24) + 4 * 10);
  EXPECT_EQ(work.flop, 2 * 5 * 2 * 4 * 3);
}

TEST(DeviceWork, OfSelectionsIsTheScoresAndTheIndices) {
  EXPECT_EQ(select_top_work(3, 10, 4).bytes, 4 * 30 + 8 * (3 * 4 + 3));
  EXPECT_EQ(select_critical_work(3, 10, 4, 2).bytes, 4 * 60 + 8 * (3 * 4 + 3 * 2 + 2 * 3));
  EXPECT_EQ(select_top_work(3, 10, 4).flop, 0);
}

TEST(DeviceWork, OfCompactionIsEveryKeptNumberTwiceAndItsPositionTwice) {
  // 2 entries of one KV head are kept: 8 numbers of keys and 8 of values, read and written; 2
  // positions and a count, twice.
  EXPECT_EQ(compact_work(kTiny, 2).bytes, 2 * (2 * 8 + 2 * 8) + 8 * (2 * 2 + 2));
}

TEST(DeviceWork, OfALargeLayerIsWhatItsFloorsAreTakenFrom) {
  const LayerShape llama = parse_bench_shape("llama-3.1-8b").layer;
  const auto near = [](double number) { return testing::DoubleNear(number, 0.02 * number); };
  EXPECT_THAT(attention_work(llama, 32768).bytes, near(139e6));
  EXPECT_THAT(attention_work(llama, 32768).flop, near(0.537e9));
  EXPECT_THAT(window_attention_work(llama, 32, 32768).flop, near(8.6e9));
  EXPECT_THAT(projected_value_norms_work(llama, 32768).bytes, near(105e6));
  EXPECT_THAT(projected_value_norms_work(llama, 32768).flop, near(1.1e12));
  EXPECT_THAT(compact_work(llama, 32768 / 5).bytes, near(54e6));
}

// Two bench pieces that only record that they ran.
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

TEST(Measure, BelievesAPieceThatHasAClockOfItsOwn) {
  int calls = 0;
  BenchPiece piece{
      "one", 10, "FLOP", [] { FAIL() << "has its own way to run"; }, [&] { return double(++calls); }, 20};
  const BenchResult result = measure({piece}, {3, 1e9});
  EXPECT_EQ(result.times[0].seconds, (std::vector<double>{2, 3, 4})) << "the first is to warm up";
  EXPECT_EQ(result.times[0].bytes, 20);
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

std::vector<std::string> names_of(std::string_view backend) {
  std::vector<std::string> names;
  for (const BenchOperation& operation : bench_operations(backend)) names.emplace_back(operation.name);
  return names;
}

TEST(BenchOperations, AreKnownByName) {
  EXPECT_EQ(names_of("reference"), (std::vector<std::string>{"exponential",
                                                             "projected-value-norms",
                                                             "projected-value-norms-l2",
                                                             "window-attention",
                                                             "window-scores-joint",
                                                             "window-scores-exact",
                                                             "selection",
                                                             "nearest-key",
                                                             "compress",
                                                             "step-attention",
                                                             "step-value",
                                                             "step-key",
                                                             "step-joint",
                                                             "step-exact",
                                                             "step-keepkv",
                                                             "upload",
                                                             "step-host",
                                                             "replay",
                                                             "prefill",
                                                             "model-step",
                                                             "lockstep"}));
  std::vector<std::string> emulated = names_of("emulated");
  EXPECT_EQ(emulated.front(), "attention");
  EXPECT_EQ(emulated.back(), "step");
  std::ranges::sort(emulated);
  EXPECT_TRUE(std::ranges::unique(emulated).empty());
#ifdef KVBOUND_HAS_NATIVE
  EXPECT_EQ(names_of("cuda"), names_of("emulated"));
#endif
}

// Of a round of an operation of the emulation: a layer of 8 query heads on 2 KV heads, head_dim 64, model_dim
// 256; 256 tokens, of which 51 are kept.
BenchTimes measured(std::string_view name) {
  const BenchOptions options{.shape = parse_bench_shape("pocket:256"), .rounds = {.asked = 1, .seconds = 1}};
  for (const BenchOperation& operation : bench_operations("emulated")) {
    if (operation.name == name) return operation.run(options).times.front();
  }
  throw std::invalid_argument(std::string(name));
}

TEST(DeviceOperations, CountEveryArrayOnce) {
  // Scores of 8 heads, means of 2.
  const BenchTimes reduce = measured("reduce-group");
  EXPECT_EQ(reduce.unit, "bytes");
  EXPECT_EQ(reduce.work, 4 * (8 + 2) * 256);
  // Of 205 evicted entries positions, rows and cosines; members and 57 offsets, of a cache that
  // has room for 56 entries.
  EXPECT_EQ(measured("form-clusters").work, 2 * (205 * (8 + 8 + 4) + 205 * 8 + 57 * 8));
  // Keys of as many entries as a cache of 51 and one more has room for, their lengths and
  // positions; products of 64 numbers.
  const BenchTimes nearest = measured("nearest-key");
  EXPECT_EQ(nearest.unit, "FLOP");
  EXPECT_EQ(nearest.bytes, 2 * 56 * (2 * 64 + 4 + 8));
  EXPECT_EQ(nearest.work, 2 * 56 * 2 * 64);
  // W^O, the Gram matrices and their factors.
  const BenchTimes gram = measured("gram-matrices");
  EXPECT_EQ(gram.unit, "bytes");
  EXPECT_EQ(gram.work, 8 * 64 * (2 * 256 + 2 * 4 * 64));
  // Products of 8 query heads' values with the factors' numbers on and left of the diagonal.
  const BenchTimes norms = measured("projected-value-norms-l2");
  EXPECT_EQ(norms.unit, "FLOP");
  EXPECT_EQ(norms.work, 2 * 8 * 256 * 64 * 65 / 2);
}

}  // namespace
}  // namespace kvbound::sim::bench_test
