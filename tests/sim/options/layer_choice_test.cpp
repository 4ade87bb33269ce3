#include <gtest/gtest.h>
#include <optional>
#include <vector>

#include <kvbound/sim/options/layer_choice.hpp>

namespace kvbound::sim::layer_choice_test {
namespace {

using Layers = std::optional<std::vector<int64_t>>;

traces::TraceInfo trace_of(int64_t layers, std::vector<int64_t> model_layers = {}) {
  traces::TraceInfo info;
  info.layers = layers;
  info.model_layers = std::move(model_layers);
  return info;
}

TEST(LayersNamed, AreTheTracesOwnWhereTheModelsWereNotRecorded) {
  const traces::TraceInfo info = trace_of(7);
  EXPECT_EQ(layers_named("3,0-1,1", info), Layers({0, 1, 3}));
  EXPECT_EQ(layers_named("0-6", info), Layers({0, 1, 2, 3, 4, 5, 6}));
  for (const char* list :
       {"7", "0-7", "", ",", "0,", "1-0", "-1", "x", "0x1", "1.0", "99999999999999999999"}) {
    EXPECT_EQ(layers_named(list, info), std::nullopt) << list;
  }
}

TEST(LayersNamed, AreTheModels) {
  const traces::TraceInfo info = trace_of(3, {0, 11, 20});
  EXPECT_EQ(layers_named("11", info), Layers(std::vector<int64_t>{1}));
  EXPECT_EQ(layers_named("20,0", info), Layers({0, 2}));
  EXPECT_EQ(layers_named("10-20", info), Layers({1, 2}));
  for (const char* list : {"1", "0,2", "1-10", "12-19", "10-21", "21"}) {
    EXPECT_EQ(layers_named(list, info), std::nullopt) << list;
  }
}

TEST(LayersNamed, AreListedInMessages) {
  EXPECT_EQ(expected_layers(trace_of(3, {0, 11, 20})), "layers or ranges such as 0,3-5 among 0,11,20");
  EXPECT_EQ(expected_layers(trace_of(3)), "layers or ranges such as 0,3-5 among 0-2");
}

}  // namespace
}  // namespace kvbound::sim::layer_choice_test
