// Texts from which tasks are made.
#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/prose.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::prose_test {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

Prose prose_of(const std::string& text) {
  const TemporaryFolder folder;
  return Prose(folder.write("prose.txt", text));
}

TEST(Prose, HasPlainLineEndsAndNoByteOrderMark) {
  EXPECT_EQ(prose_of("\xef\xbb\xbfone\r\ntwo\rthree\n\r").text(), "one\ntwo\rthree\n\r");
  EXPECT_EQ(prose_of("").text(), "");
}

TEST(Prose, RefusesWhatIsNotUtf8) {
  for (const std::string& bad :
       {std::string("\x80"), std::string("\xc0\xaf"), std::string("\xc1\xbf"), std::string("\xe0\x9f\xbf"),
        std::string("\xed\xa0\x80"), std::string("\xf0\x8f\xbf\xbf"), std::string("\xf4\x90\x80\x80"),
        std::string("\xf5\x80\x80\x80"), std::string("\xff"), std::string("\xc3"), std::string("\xe2\x82"),
        std::string("\xf0\x9f\x98"), std::string("\xe2\x82z"), std::string("\xc3z")}) {
    EXPECT_THAT(message_of<TraceError>([&] { prose_of("ab" + bad); }), EndsWith(": at byte 2: is not UTF-8"));
  }
  const std::string good =
      "z\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf";
  EXPECT_EQ(prose_of(good).text(), good);
}

TEST(Prose, RefusesAFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<TraceError>([&] { Prose(folder.path()); }), HasSubstr("is a directory"));
}

TEST(Prose, KnowsWhereCharactersBegin) {
  const Prose prose = prose_of("a\u00e9\u20ac");
  std::vector<bool> found;
  for (int64_t position = 0; position <= 6; ++position)
    found.push_back(prose.is_between_characters(position));
  EXPECT_THAT(found, ElementsAre(true, true, false, true, false, false, true));
}

TEST(Prose, HasPassagesThatBeginWithAWordAndCutNoCharacter) {
  const Prose prose = prose_of("one two \u00e9 three");  // e acute is the bytes 8 and 9
  EXPECT_EQ(prose.passage(7, std::array<int64_t, 1>{3}), 4);
  EXPECT_EQ(prose.passage(6, std::array<int64_t, 1>{3}), 4);
  EXPECT_EQ(prose.passage(4, std::array<int64_t, 1>{5}), 0);  // from 4 on it would end in the middle
  EXPECT_EQ(prose.passage(4, std::array<int64_t, 2>{5, 6}), 0);
  EXPECT_EQ(prose.passage(3, std::array<int64_t, 2>{9, 3}), 3);  // no word begins where both cuts are clean
  EXPECT_EQ(prose_of("abcd").passage(2, std::array<int64_t, 1>{2}), 0);
}

TEST(Prose, RefusesPassagesThatCannotEndBetweenCharacters) {
  const Prose prose = prose_of("\u20ac\u20ac\u20ac");
  EXPECT_THAT(message_of<TraceError>([&] { prose.passage(5, std::array<int64_t, 1>{4}); }),
              HasSubstr("at byte 5: no passage of 4 bytes begins here or before"));
}

TEST(Prose, HasTheWordsOfFourToTenSmallLetters) {
  EXPECT_THAT(
      prose_of("four Seven letters; letters, won't undertakes caf\u00e9 1234word underlining_underlined the")
          .words(),
      ElementsAre("four", "letters", "underlined", "undertakes", "word"));
  EXPECT_TRUE(prose_of("").words().empty());
}

}  // namespace
}  // namespace kvbound::sim::prose_test
