#include <gtest/gtest.h>

#include <kvbound/sim/figures/cube_table.hpp>

#include "support/small_cube.hpp"

namespace kvbound::sim::cube_table_test {
namespace {

TEST(CubeTables, HaveTheColumnsThatSaySomething) {
  EXPECT_EQ(cube_table(test::small_cube(), {}),
            "policy  entries  head       L  count\n"
            "a, \"b\"  1000000     0  0.5000      1\n"
            "a, \"b\"  1000000     1   1.000      2\n"
            "a, \"b\"  1000000     2       -      3\n"
            "c            20     0     inf      4\n"
            "c            20     1   0.000      5\n"
            "c            20     2  0.1250      6\n");
}

TEST(CubeTables, HaveTheColumnsThatAreAskedFor) {
  Cube cube = test::small_cube();
  cube.columns[0].figure.shown = Shown::if_asked;
  const auto headings = [&](const std::vector<std::string>& columns) {
    const std::string table = cube_table(cube, {.markdown = true}, columns);
    return table.substr(0, table.find('\n'));
  };
  EXPECT_EQ(headings({}), "| policy | entries | head | count |");
  EXPECT_EQ(headings({"l", "bound"}), "| policy | entries | head | L |");
}

TEST(CubeTables, FitTheWidthAndNameTheColumnsThatDoNot) {
  EXPECT_EQ(cube_table(test::small_cube(), {.width = 40}), cube_table(test::small_cube(), {}));
  EXPECT_EQ(cube_table(test::small_cube(), {.width = 30}),
            "policy  entries  head       L\n"
            "a, \"b\"  1000000     0  0.5000\n"
            "a, \"b\"  1000000     1   1.000\n"
            "a, \"b\"  1000000     2       -\n"
            "c            20     0     inf\n"
            "c            20     1   0.000\n"
            "c            20     2  0.1250\n"
            "(more on a wider terminal: count)\n");
  EXPECT_TRUE(cube_table(test::small_cube(), {.width = 30}, std::vector<std::string>())
                  .ends_with("(more by --columns: count)\n"));
  const std::string narrow = cube_table(test::small_cube(), {.width = 5});
  EXPECT_EQ(narrow.substr(0, narrow.find('\n')), "policy  entries  head") << "keys stay";
  EXPECT_EQ(cube_table(test::small_cube(), {.width = 30}, {"L", "count"}),
            cube_table(test::small_cube(), {}));
}

TEST(CubeTables, ShowFindingsInRed) {
  Cube cube = test::small_cube();
  cube.columns = {number_column(test::named("violations", Format::count), {0, 0, 3, kUndefined, 0, 0})};
  cube.columns[0].figure.alarming = is_not_zero;
  const std::string table = cube_table(cube, {.colour = true});
  EXPECT_NE(table.find("\x1b[31m         3\x1b[0m"), std::string::npos) << table;
  EXPECT_EQ(table.find("\x1b[31m"), table.rfind("\x1b[31m")) << table;
}

}  // namespace
}  // namespace kvbound::sim::cube_table_test
