#include <limits>

#include <gtest/gtest.h>

#include <kvbound/sim/figures/figure.hpp>

namespace kvbound::sim::figure_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

Figure of(Format format) {
  return {.name = "kept_mass", .heading = "kept mass", .meaning = "", .format = format};
}

TEST(Figures, AreShownByTheirFormats) {
  EXPECT_EQ(cell_text(of(Format::number), 1.0 / 3), "0.3333");
  EXPECT_EQ(cell_text(of(Format::count), 1e6), "1000000");
  EXPECT_EQ(cell_text(of(Format::share), 0.2567), "25.7 %");
  EXPECT_EQ(cell_text(of(Format::duration), 0.0439), "43.9 ms");
  for (const Format format : {Format::number, Format::count, Format::share, Format::duration})
    EXPECT_EQ(cell_text(of(format), kNan), "-");
}

TEST(Figures, AreWrittenInTheShortestTextThatReadsBack) {
  EXPECT_EQ(number_text(of(Format::number), 0.1), "0.1");
  EXPECT_EQ(number_text(of(Format::share), 1e-7), "1e-7");
  EXPECT_EQ(number_text(of(Format::count), 1e6), "1000000");
  EXPECT_EQ(number_text(of(Format::count), -1), "-1");
  for (const double none : {kNan, kInfinite, -kInfinite})
    EXPECT_EQ(number_text(of(Format::number), none), "");
}

TEST(Figures, AreNamedByTheirNamesAndHeadings) {
  Figure relative{.name = "relative", .heading = "relative L", .meaning = ""};
  for (const char* text : {"relative", "relative L", "relative-l", "Relative_L"})
    EXPECT_TRUE(is_named(relative, text));
  for (const char* text : {"", "rel", "L"}) EXPECT_FALSE(is_named(relative, text));
}

}  // namespace
}  // namespace kvbound::sim::figure_test
