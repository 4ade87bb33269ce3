#include <gtest/gtest.h>

#include <kvbound/sim/figures/csv.hpp>

#include "support/small_cube.hpp"

namespace kvbound::sim::csv_test {
namespace {

TEST(Csv, HasTheRowsOfSeveralCubesUnderAllTheirKeys) {
  const Cube heads = test::small_cube();
  const Cube runs{"runs", {heads.axes[0]}, {text_column(test::named("note"), {"", "two\nlines"})}};
  const Part part{{}, {heads, runs}, {"heads", "runs"}, {text_column(test::named("trace"), {"t,1"})}};
  EXPECT_EQ(csv_headings(part), "trace,policy,entries,head,L,bound,count,note\n");
  EXPECT_EQ(csv_rows(part),
            "\"t,1\",\"a, \"\"b\"\"\",1000000,0,0.5,,1,\n"
            "\"t,1\",\"a, \"\"b\"\"\",1000000,1,1,,2,\n"
            "\"t,1\",\"a, \"\"b\"\"\",1000000,2,,,3,\n"
            "\"t,1\",c,20,0,,,4,\n"
            "\"t,1\",c,20,1,0,,5,\n"
            "\"t,1\",c,20,2,0.125,,6,\n"
            "\"t,1\",\"a, \"\"b\"\"\",1000000,all,,,,\n"
            "\"t,1\",c,20,all,,,,\"two\nlines\"\n");
}

TEST(Csv, HasOnlyTheCubesOfRows) {
  const Part part{{}, {test::small_cube()}};
  EXPECT_EQ(csv_rows(part), "");
}

}  // namespace
}  // namespace kvbound::sim::csv_test
