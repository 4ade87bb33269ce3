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
constexpr int64_t kEntries = int64_t{2} * 8 * 32'768 * 128, kOthers = int64_t{32} * 128 * (256 + 4096);
constexpr int64_t kRead = 8 * (kEntries + kOthers), kStored = 2 * (3 * kEntries + 2 * kOthers);
constexpr int64_t kSteps = 16, kRecord = int64_t{8} * 32 * (32'768 + kSteps * 128);
constexpr int64_t kMuch = int64_t{1} << 50;

TEST(LayersThatFit, AreThoseOfTheSmallerMemory) {
  EXPECT_EQ(layers_that_fit(llama(), 3, kSteps, {kMuch, 5 * kStored}), 5);
  EXPECT_EQ(layers_that_fit(llama(), 3, kSteps, {kMuch, 5 * kStored - 1}), 4);
  const int64_t host = kRead + 5 * (kRead + 3 * kRecord);  // one is read beside five
  EXPECT_EQ(layers_that_fit(llama(), 3, kSteps, {host, kMuch}), 5);
  EXPECT_EQ(layers_that_fit(llama(), 3, kSteps, {host - 1, kMuch}), 4);
  EXPECT_EQ(layers_that_fit(llama(), 3, kSteps, {host + 5 * kStored}), 5) << "an emulated device";
  EXPECT_EQ(layers_that_fit(llama(), 3, kSteps, {host + 5 * kStored - 1}), 4);
}

// A prompt, and twice as many entries as it has, each rounded up to whole pages.
TEST(LayersThatFit, AreFewerWherePagesAreLong) {
  const traces::TraceInfo trace = llama();
  const int64_t tokens = trace.prompt_tokens + trace.decode_tokens, page_size = int64_t{1} << 20;
  ASSERT_LT(tokens, page_size);
  const int64_t more = 2 * 2 * 2 * trace.shape.kv_heads * trace.shape.head_dim * (page_size - tokens);
  const int64_t layer = kStored + more;
  EXPECT_EQ(layers_that_fit(trace, 1, kSteps, {kMuch, 5 * layer}, page_size), 5);
  EXPECT_EQ(layers_that_fit(trace, 1, kSteps, {kMuch, 5 * layer - 1}, page_size), 4);
}

TEST(LayersThatFit, AreAtLeastOne) { EXPECT_EQ(layers_that_fit(llama(), 1, kSteps, {1, 1}), 1); }

TEST(LayersThatFit, AreFewerInSinglePrecision) {
  traces::TraceInfo trace = llama();
  trace.storage = Dtype::f64;  // stored as F32
  EXPECT_EQ(layers_that_fit(trace, 1, kSteps, {kMuch, 10 * 2 * kStored}), 10);
}

TEST(LayersAtOnce, IsOneWhereNothingIsGained) {
  const auto runs = [](const std::string& policy, const std::vector<std::string>& backends) {
    return every_run(named_policies({policy}, std::nullopt), {parse_budget("20%")}, backends);
  };
  traces::TraceInfo small = llama();
  small.prompt_tokens = 100;
  small.shape.model_dim = 1;
  EXPECT_EQ(layers_at_once(small, runs("tova", {"reference"}), kSteps), 1);
  EXPECT_EQ(layers_at_once(small, runs("tova+keepkv:period=2", {"emulated"}), kSteps), 1);
  EXPECT_EQ(layers_at_once(small, runs("tova", {"emulated"}), 0), 1);
  EXPECT_GT(layers_at_once(small, runs("tova", {"reference", "emulated"}), kSteps), 1);
}

}  // namespace
}  // namespace kvbound::sim::layers_at_once_test
