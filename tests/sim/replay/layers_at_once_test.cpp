#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/options/runs.hpp>
#include <kvbound/sim/replay/layers_at_once.hpp>

namespace kvbound::sim::layers_at_once_test {
namespace {

// Of 32,768 tokens: 67 million numbers of keys and values, 17 million of W^O, a million of queries.
traces::TraceInfo llama() {
  traces::TraceInfo trace;
  trace.shape = {32, 8, 128, 4096};
  trace.layers = 32;
  trace.prompt_tokens = 32'752;
  trace.decode_tokens = 16;
  trace.window_queries = 240;
  trace.storage = Dtype::bf16;
  return trace;
}
constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kEntries = int64_t{2} * 8 * 32'768 * 128, kOthers = int64_t{32} * 128 * (256 + 4096);

TEST(LayersThatFit, AreThoseOfTheSmallerMemory) {
  const int64_t host = 8 * (kEntries + kOthers), device = 2 * (3 * kEntries + 2 * kOthers);
  EXPECT_EQ(layers_that_fit(llama(), {1000 * host, 5 * device}), 5);
  EXPECT_EQ(layers_that_fit(llama(), {1000 * host, 5 * device - 1}), 4);
  EXPECT_EQ(layers_that_fit(llama(), {6 * host, 1000 * device}), 5) << "beside one that is read";
  EXPECT_EQ(layers_that_fit(llama(), {6 * host - 1, 1000 * device}), 4);
  EXPECT_GE(layers_that_fit(llama(), {32 * kGib, 70 * kGib}), 32) << "a quarter of 128 GiB, half of an H200";
}

TEST(LayersThatFit, AreAtLeastOne) { EXPECT_EQ(layers_that_fit(llama(), {1, 1}), 1); }

TEST(LayersThatFit, AreFewerInSinglePrecision) {
  traces::TraceInfo trace = llama();
  trace.storage = Dtype::f64;  // stored as F32
  EXPECT_EQ(layers_that_fit(trace, {1000 * kGib, 10 * 4 * (3 * kEntries + 2 * kOthers)}), 10);
}

TEST(LayersAtOnce, IsOneWithoutADevice) {
  const auto runs = [](const std::vector<std::string>& backends) {
    return every_run(named_policies({"tova"}, std::nullopt), {parse_budget("20%")}, backends);
  };
  traces::TraceInfo small = llama();
  small.prompt_tokens = 100;
  EXPECT_EQ(layers_at_once(small, runs({"reference"})), 1);
  EXPECT_GT(layers_at_once(small, runs({"reference", "emulated"})), 1);
}

}  // namespace
}  // namespace kvbound::sim::layers_at_once_test
