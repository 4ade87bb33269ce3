// Layers read ahead are those of the trace, in their order, and errors come at their layer's turn.
#include <omp.h>
#include <algorithm>
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/layers_ahead.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::layers_ahead_test {
namespace {

class LayersAheadTest : public ::testing::TestWithParam<int> {
 protected:
  LayersAheadTest() : threads_(omp_get_max_threads()) {
    GenerateOptions options{.tokens = 300, .decode = 2, .layers = 5, .dtype = Dtype::bf16};
    generate(options, path());
    omp_set_num_threads(GetParam());
  }
  ~LayersAheadTest() override { omp_set_num_threads(threads_); }

  std::string path() const { return folder_.path("trace.safetensors"); }

 private:
  test::TemporaryFolder folder_;
  int threads_;
};

TEST_P(LayersAheadTest, AreTheTraces) {
  const Trace trace(path());
  LayersAhead layers(trace, {0, 3, 4, 1}), with_bits(trace, {0, 3, 4, 1}, {.bits = true});
  for (const int64_t index : {0, 3, 4, 1}) {
    const Layer layer = layers.next(), expected = trace.read_layer(index);
    EXPECT_EQ(layer.index, index);
    EXPECT_TRUE(layer.bits.keys.empty());
    EXPECT_EQ(with_bits.next().bits.keys, trace.read_layer(index, {.bits = true}).bits.keys);
    EXPECT_TRUE(std::ranges::equal(layer.keys.view().slice(0).row(7), expected.keys.view().slice(0).row(7)));
    EXPECT_TRUE(std::ranges::equal(layer.values.numbers(), expected.values.numbers()));
    EXPECT_TRUE(std::ranges::equal(layer.queries.numbers(), expected.queries.numbers()));
    EXPECT_TRUE(std::ranges::equal(layer.output_projection.numbers(), expected.output_projection.numbers()));
  }
}

TEST_P(LayersAheadTest, FailAtTheTurnOfTheLayerThatCannotBeRead) {
  const Trace trace(path());
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  LayersAhead layers(trace, {0, 1, 4});
  EXPECT_EQ(layers.next().index, 0);
  EXPECT_EQ(layers.next().index, 1);
  EXPECT_THROW(layers.next(), TraceError);
}

TEST_P(LayersAheadTest, MayBeLeftBeforeTheLast) {
  const Trace trace(path());
  LayersAhead layers(trace, {0, 1, 2});
  EXPECT_EQ(layers.next().index, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, LayersAheadTest, ::testing::Values(1, 2, 9));

}  // namespace
}  // namespace kvbound::traces::layers_ahead_test
