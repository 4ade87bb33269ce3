#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/sim/figures/plot.hpp>

namespace kvbound::sim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(BarCharts, ScaleBarsToTheLongest) {
  const std::vector<Bar> bars{{"h2o", "5%", 2.0}, {"h2o", "10%", 1.0}, {"tova", "5%", std::nullopt}};
  EXPECT_EQ(bar_chart("L", bars, {}), "\nL\n\nh2o    5%  " + std::string(40, '#') + " 2.000\n      10%  " +
                                          std::string(20, '#') + " 1.000\ntova   5%   -\n");
}

TEST(BarCharts, HaveEighthsOfBlocksInColour) {
  const std::string text = bar_chart("L", {{"a", "1", 40.0}, {"a", "2", 1.5}}, {.colour = true});
  EXPECT_NE(text.find("2  █▌ 1.500\n"), std::string::npos) << text;
}

TEST(BarCharts, OfNothingAreEmpty) {
  EXPECT_EQ(bar_chart("L", {{"a", "1", std::nullopt}, {"a", "2", 0.0}}, {}), "");
  EXPECT_EQ(bar_chart("L", {}, {}), "");
}

TEST(BarCharts, HaveTheBarsOfASeriesSideBySide) {
  Cube cube{"runs",
            {axis("run", {text_column(text_figure("policy", ""), {"a", "b", "a", "b"}),
                          text_column(text_figure("budget", ""), {"5%", "5%", "10%", "10%"})})},
            {number_column(count_figure("L", ""), {1, 2, 3, kNan})}};
  std::vector<std::string> bars;
  for (const Bar& bar : bars_of(cube, "policy", "budget", "L"))
    bars.push_back(bar.series + " " + bar.place + " " + std::to_string(static_cast<int>(*bar.value)));
  EXPECT_EQ(bars, (std::vector<std::string>{"a 5% 1", "a 10% 3", "b 5% 2"}));
}

TEST(BarCharts, AreFencedInMarkdown) {
  EXPECT_EQ(bar_chart("L", {{"a", "1", 1.0}}, {.markdown = true}),
            "\nL\n\n```\na  1  " + std::string(40, '#') + " 1.000\n```\n");
}

TEST(CellMaps, HaveNinthsOfTheLargestChangeWithTheirSign) {
  const CellMap cells{"change", {"0", "11"}, 3, {0.9, -0.1, 0.01, -0.3, kNan, 0.5}, true};
  EXPECT_EQ(cell_map(cells, {}),
            "\nchange\n\n    0  1  2\n 0 +9 -1  0\n11 -3  - +5\n    -9: -0.9, +9: 0.9\n");
}

TEST(CellMaps, HaveTenthsOfTheRangeWithoutASign) {
  const CellMap cells{"entries", {"0"}, 3, {10, 20, 15}, false};
  EXPECT_EQ(cell_map(cells, {}), "\nentries\n\n   0  1  2\n0  0 10  5\n   0: 10, 10: 20\n");
}

TEST(CellMaps, AreColouredBySignAndSize) {
  const CellMap cells{"change", {"0"}, 3, {-1, 0, 1}, true};
  const std::string text = cell_map(cells, {.colour = true});
  EXPECT_NE(text.find("purple: -1, white: 0, orange: 1\n"), std::string::npos) << text;
  for (const char* colour : {"48;5;54m", "48;5;255m", "48;5;130m"})
    EXPECT_NE(text.find(colour), std::string::npos) << colour;
}

TEST(CellMaps, OfNothingSaySo) {
  EXPECT_EQ(cell_map({"e", {"0"}, 2, {kNan, kNan}, true}, {}), "\ne\n\n   0  1\n0  -  -\n   no numbers\n");
}

TEST(CellMaps, OfOneValueLieInTheMiddle) {
  EXPECT_EQ(cell_map({"e", {"0"}, 1, {7}, false}, {}), "\ne\n\n   0\n0  5\n   0: 7, 10: 7\n");
}

}  // namespace
}  // namespace kvbound::sim
