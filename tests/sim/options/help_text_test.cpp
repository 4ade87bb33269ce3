#include <gtest/gtest.h>
#include <string>

#include <kvbound/sim/options/help_text.hpp>

namespace kvbound::sim::help_text_test {
namespace {

TEST(HelpText, FillsParagraphs) {
  EXPECT_EQ(filled("one two three\nfour\n\nfive", 10), "one two\nthree four\n\nfive\n");
  EXPECT_EQ(filled("one two three\nfour", 80), "one two three four\n");
  EXPECT_EQ(filled("", 10), "");
  EXPECT_EQ(filled("longer-than-the-line a b", 10), "longer-than-the-line\na b\n");
}

TEST(HelpText, PutsMeaningsBesideTheirTerms) {
  EXPECT_EQ(filled("Terms:\n  one  the first of\n    all terms\n  two  another\n", 20),
            "Terms:\n  one  the first of\n       all terms\n  two  another\n");
  EXPECT_EQ(filled("  a rather long term  its meaning\n", 20), "  a rather long term\n      its meaning\n");
  EXPECT_EQ(filled("  an item without a meaning\n", 16), "  an item\n    without a\n    meaning\n");
}

TEST(HelpText, LeavesBlocksAsTheyAre) {
  EXPECT_EQ(filled("Such as\n\n    {\"a\":  1,   \"b\": 2}\n\nor not", 10),
            "Such as\n\n    {\"a\":  1,   \"b\": 2}\n\nor not\n");
}

TEST(HelpText, AlignsTheMeaningsOfAList) {
  EXPECT_EQ(items_text({{"a", "first"}, {"bcd", "second of all"}}, 16),
            "  a    first\n  bcd  second of\n       all\n");
  EXPECT_EQ(items_text({{"a", "first"}, {"a term of many words", "second"}}, 24),
            "  a   first\n  a term of many words\n      second\n");
}

TEST(HelpText, BreaksCommandsWhereAShellContinuesThem) {
  EXPECT_EQ(command_text("kvbound a", 20), "  kvbound a\n");
  EXPECT_EQ(command_text("kvbound replay trace --budget 5%", 24),
            "  kvbound replay trace \\\n      --budget 5%\n");
  EXPECT_EQ(command_text("kvbound a --sbatch \"--x=1 --y=2\"", 20),
            "  kvbound a \\\n      --sbatch \\\n      \"--x=1 --y=2\"\n");
}

}  // namespace
}  // namespace kvbound::sim::help_text_test
