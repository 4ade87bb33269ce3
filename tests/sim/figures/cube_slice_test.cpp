#include <gtest/gtest.h>

#include <kvbound/sim/figures/cube_slice.hpp>

#include "support/small_cube.hpp"

namespace kvbound::sim::cube_slice_test {
namespace {

std::vector<double> counts(const Cube& cube) { return cube.find("count")->numbers(); }

TEST(CubeSlices, HaveTheRowsAtAPlace) {
  const Cube of_run = at_place(test::small_cube(), "run", 1),
             of_head = at_place(test::small_cube(), "head", 2);
  EXPECT_EQ(counts(of_run), (std::vector<double>{4, 5, 6}));
  EXPECT_EQ(counts(of_head), (std::vector<double>{3, 6}));
  ASSERT_EQ(of_run.axes.size(), 1U);
  EXPECT_EQ(of_run.axes[0]->name, "head");
  EXPECT_EQ(of_head.axes[0]->name, "run");
}

TEST(CubeSlices, HaveTheRowsAtSomePlacesAndTheirKeys) {
  const std::vector<int64_t> places{2, 0};
  const Cube some = restricted(test::small_cube(), "head", places);
  EXPECT_EQ(counts(some), (std::vector<double>{3, 1, 6, 4}));
  EXPECT_EQ(some.axes[1]->keys[0].numbers(), (std::vector<double>{2, 0}));
  EXPECT_EQ(restricted(test::small_cube(), "run", {}).rows(), 0);
}

TEST(CubeSlices, StandSideBySide) {
  Cube cube = test::small_cube();
  const Cube wide = side_by_side(cube, "head", "head");
  ASSERT_EQ(wide.axes.size(), 1U);
  ASSERT_EQ(wide.columns.size(), 9U);
  EXPECT_EQ(wide.columns[8].figure.heading, "2 count");
  EXPECT_EQ(wide.find("count_2")->numbers(), (std::vector<double>{3, 6}));
  cube.columns = {*cube.find("count"), *cube.find("L")};
  cube.columns[1].figure.shown = Shown::if_asked;
  const Cube of_counts = side_by_side(cube, "run", "policy");
  ASSERT_EQ(of_counts.columns.size(), 2U) << "of those shown by default";
  EXPECT_EQ(of_counts.columns[1].figure.heading, "c");
  EXPECT_EQ(of_counts.columns[1].numbers(), (std::vector<double>{4, 5, 6}));
}

}  // namespace
}  // namespace kvbound::sim::cube_slice_test
