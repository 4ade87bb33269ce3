#include <array>

#include <gtest/gtest.h>

#include <kvbound/sim/report/page/page_cube.hpp>

namespace kvbound::sim {
namespace {

TEST(PageCube, HasAxesWithKeysAndColumnsOfNumbers) {
  PageCube cube;
  cube.add_axis({{"policy", {"a", "b"}}, {"entries", {10, 20}}});
  cube.add_counted_axis("head", 3);
  cube.append("L", std::array{1.0, 2.0, 3.0});
  cube.append("L", std::array{0.5, kUndefined, 1.0 / 3});
  EXPECT_EQ(cube.rows(), 6);
  EXPECT_EQ(cube.json("c"), Json::parse(R"({
    "id": "c",
    "axes": [{"size": 2, "keys": {"policy": ["a", "b"], "entries": [10, 20]}}, {"size": 3, "keys": {"head": [0, 1, 2]}}],
    "columns": {"L": [1, 2, 3, 0.5, null, 0.333333]}
  })"));
}

TEST(PageCube, HasNumbersInSixDigits) {
  PageCube cube;
  cube.add_counted_axis("i", 6);
  cube.append("x", std::array{123456.7, 1234567.0, 1.23456789e-12, -2.0, 1e60, 0.0});
  EXPECT_EQ(cube.json("c")["columns"]["x"].dump(), "[123457,1234570,1.23457e-12,-2,1e+60,0]");
}

TEST(PageCube, HasNumbersWhoseRatiosCanBeSquared) {
  PageCube cube;
  cube.add_counted_axis("i", 4);
  cube.append("x", std::array{1e80, -1e300, 1e-80, -1e-300});
  EXPECT_EQ(cube.json("c")["columns"]["x"].dump(), "[1e+75,-1e+75,0,0]");
}

TEST(PageCube, SaysSomethingIfAColumnHasANumber) {
  PageCube cube;
  cube.append("none", kUndefined);
  cube.append("some", kUndefined);
  cube.append("some", 0);
  EXPECT_FALSE(cube.says_something("none"));
  EXPECT_TRUE(cube.says_something("some"));
  EXPECT_FALSE(cube.says_something("other"));
}

}  // namespace
}  // namespace kvbound::sim
