#include <gtest/gtest.h>

#include <kvbound/traces/layer_list.hpp>

namespace kvbound::traces::layer_list_test {
namespace {

using Layers = std::vector<int64_t>;

TEST(LayerList, IsTheShortestTextOfAscendingLayers) {
  EXPECT_EQ(layer_list({0}), "0");
  EXPECT_EQ(layer_list({0, 1, 2}), "0-2");
  EXPECT_EQ(layer_list({0, 2, 3, 7}), "0,2-3,7");
}

TEST(LayerList, ReadsBackWhatItWrites) {
  for (const Layers& layers : {Layers{3}, {0, 1}, {0, 2, 4}, {1, 2, 3, 9, 11, 12}}) {
    EXPECT_EQ(parse_layer_list(layer_list(layers), 13), layers) << layer_list(layers);
  }
}

TEST(LayerList, RefusesWhatDoesNotAscendOrIsNotThere) {
  for (const char* text :
       {"", ",", "0,", ",0", "1,0", "0,0", "0-2,2", "2-1", "-1", "0-", "x", "0 ", "13", "5-13"}) {
    EXPECT_FALSE(parse_layer_list(text, 13)) << text;
  }
  EXPECT_TRUE(parse_layer_list("0-12", 13));
}

TEST(LayerList, RefusesMoreLayersThanItMayHave) {
  EXPECT_EQ(parse_layer_list("0,2-4", 13, 4), (Layers{0, 2, 3, 4}));
  for (const char* text : {"0,2-5", "0-4", "0-2147483645", "0-1,2-2147483645"}) {
    EXPECT_FALSE(parse_layer_list(text, 2147483647, 4)) << text;
  }
}

}  // namespace
}  // namespace kvbound::traces::layer_list_test
