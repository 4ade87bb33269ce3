// Traces of recorded calls, read again.
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/flashinfer/import_trace.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/trace.hpp>

#include "support/message_of.hpp"
#include "support/recorded_calls.hpp"

namespace kvbound::traces::import_trace_test {
namespace {

class ImportTraceTest : public testing::Test {
 protected:
  ImportTraceTest() : session_(written(dumps_)), call_(session_, 2, {}) {}

  static std::string written(const test::TemporaryFolder& dumps) {
    test::RecordedDecode decode;
    decode.plan.given += R"(, "kwarg_sm_scale": 0.25)";
    decode.write(dumps);
    return dumps.path();
  }

  test::TemporaryFolder dumps_, out_;
  RecordedSession session_;
  AttentionCall call_;
};

TEST_F(ImportTraceTest, IsAPromptWhoseLastTokensHaveTheQueries) {
  const std::string path = out_.path("trace.safetensors");
  import_trace({{&call_, 0}, {&call_, 0}}, 0, path, true);
  const Trace trace(path);
  EXPECT_EQ(trace.info().layers, 2);
  EXPECT_EQ(trace.info().prompt_tokens, 3);
  EXPECT_EQ(trace.info().decode_tokens, 0);
  EXPECT_EQ(trace.info().window_queries, 1);
  EXPECT_EQ(trace.info().scale, 0.25);
  EXPECT_EQ(trace.info().model, "FlashInfer 0.6.4, BatchDecodeWithPagedKVCacheWrapper.run");
  const Layer layer = trace.read_layer(1, {.attention_output = true});
  EXPECT_EQ(layer.keys.slice(0)(2, 1), 2);
  EXPECT_EQ(layer.values.slice(0)(2, 1), 102);
  EXPECT_EQ(layer.attention_output->slice(1)(0, 0), 0);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t c = 0; c < 2; ++c) EXPECT_EQ(layer.output_projection(i, c), i % 2 == c ? 1 : 0);
  }
  import_trace({{&call_, 1}}, 0, path, false);
  EXPECT_FALSE(Trace(path).info().has_attention_output);
}

TEST_F(ImportTraceTest, RefusesLayersThatDifferAndStepsWithoutAPromptsQuery) {
  const std::string path = out_.path("trace.safetensors");
  const auto told = [&](const std::vector<ImportedLayer>& layers, int64_t steps) {
    return test::message_of<InvalidOption>([&] { import_trace(layers, steps, path, true); });
  };
  EXPECT_NE(told({{&call_, 0}, {&call_, 1}}, 0).find("2 tokens, scale 0.25; the layers before it have"),
            std::string::npos);
  EXPECT_NE(told({{&call_, 0}}, 1).find("1 decode steps: the request has 1 queries"), std::string::npos);
  EXPECT_NE(told({{&call_, 0}}, -1).find("-1 decode steps"), std::string::npos);
  EXPECT_EQ(out_.size(), 0);
}

}  // namespace
}  // namespace kvbound::traces::import_trace_test
