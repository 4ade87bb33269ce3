#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/report/page/short_paths.hpp>

namespace kvbound::sim {
namespace {

using Paths = std::vector<std::string>;

TEST(ShortPaths, AreFileNamesWhereTheseDiffer) {
  EXPECT_EQ(short_paths({"/a/b/x.json", "c/y.json", "z.json"}), (Paths{"x.json", "y.json", "z.json"}));
}

TEST(ShortPaths, HaveFoldersThatTellThemApart) {
  EXPECT_EQ(short_paths({"a/c/x.json", "b/c/x.json", "b/c/y.json"}),
            (Paths{"a/c/x.json", "b/c/x.json", "y.json"}));
  EXPECT_EQ(short_paths({"/r/a/x.json", "/r/b/x.json"}), (Paths{"a/x.json", "b/x.json"}));
}

TEST(ShortPaths, ArePathsWhereThoseAreTailsOfOthers) {
  EXPECT_EQ(short_paths({"x.json", "a/x.json"}), (Paths{"x.json", "a/x.json"}));
}

TEST(ShortPaths, OfNamesThatEndAlikeAreTheseNames) {
  EXPECT_EQ(short_paths({"a/x.json", "b/xx.json"}), (Paths{"x.json", "xx.json"}));
}

TEST(ShortPaths, OfEqualPathsAreEqual) { EXPECT_EQ(short_paths({"a/x", "a/x"}), (Paths{"x", "x"})); }

TEST(ShortPaths, OfPathsWithoutAFileNameAreThesePaths) {
  EXPECT_EQ(short_paths({"", "/", "/x"}), (Paths{"", "/", "/x"}));
}

}  // namespace
}  // namespace kvbound::sim
