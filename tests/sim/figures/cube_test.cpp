#include <gtest/gtest.h>

#include "support/small_cube.hpp"

namespace kvbound::sim::cube_test {
namespace {

TEST(Cubes, HaveTheLastAxisVaryFastest) {
  const Cube cube = test::small_cube();
  ASSERT_EQ(cube.rows(), 6);
  std::vector<int64_t> runs, heads;
  for (int64_t row = 0; row < cube.rows(); ++row) {
    runs.push_back(cube.place(row, 0));
    heads.push_back(cube.place(row, 1));
  }
  EXPECT_EQ(runs, (std::vector<int64_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(heads, (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
}

TEST(Cubes, SaySomethingIfAColumnDoes) {
  Cube cube = test::small_cube();
  EXPECT_TRUE(cube.says_something());
  EXPECT_FALSE(cube.find("bound")->says_something());
  EXPECT_EQ(cube.find("missing"), nullptr);
  cube.columns = {*cube.find("bound"), text_column(test::named("note"), std::vector<std::string>(6))};
  EXPECT_FALSE(cube.says_something());
  cube.columns.back().texts()[5] = "x";
  EXPECT_TRUE(cube.says_something());
}

}  // namespace
}  // namespace kvbound::sim::cube_test
