#include <gtest/gtest.h>

#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {
namespace {

const std::vector<TableRow> kRows{{"policy", "L"}, {"h2o", "1.5"}, {"snapkv|x", "12"}};

TEST(Tables, HaveColumnsAsWideAsTheirCells) {
  EXPECT_EQ(table(kRows), "policy      L\nh2o       1.5\nsnapkv|x   12\n");
}

TEST(Tables, MarkHeadingsAndAlarmsInColour) {
  const TableStyle style{
      .text = {.colour = true},
      .alarming = [](const std::string&, const std::string& cell) { return cell == "12"; }};
  EXPECT_EQ(table({{"a", "L"}, {"b", "12"}}, style),
            "\x1b[1ma\x1b[0m  \x1b[1m L\x1b[0m\nb  \x1b[31m12\x1b[0m\n");
}

TEST(Tables, AreMarkdownWithEscapedCells) {
  EXPECT_EQ(table(kRows, {.text = {.markdown = true}}),
            "| policy | L |\n|---|---:|\n| h2o | 1.5 |\n| snapkv\\|x | 12 |\n");
  EXPECT_EQ(table({{"a", "b", "c"}, {"1"}}, {.left_columns = 2, .text = {.markdown = true}}),
            "| a | b | c |\n|---|---|---:|\n| 1 |  |  |\n");
}

}  // namespace
}  // namespace kvbound::sim
