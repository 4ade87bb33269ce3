#include <gtest/gtest.h>
#include <array>
#include <string>

#include <kvbound/traces/models/token_texts.hpp>

namespace kvbound::traces::token_texts_test {
namespace {

std::string text(TokenSpelling spelling, const std::vector<std::string>& pieces,
                 std::vector<int64_t> tokens) {
  return TokenTexts(spelling, pieces).text(tokens);
}

TEST(TokenTexts, AreTheBytesOfModelsWhoseTokensAreBytes) {
  EXPECT_EQ(text(TokenSpelling::bytes, {}, {79, 110, 10, 0xe2, 0x82, 0xac}), "On\n\u20ac");
}

TEST(TokenTexts, OfByteLevelHaveACharacterForEveryByte) {
  const std::vector<std::string> pieces{
      "The", "\u0120code", "\u010a", "\u00e2\u0124\u00ac", "<|im_end|>", "\u4e2d", "\u0100\u0143\u00ff"};
  EXPECT_EQ(text(TokenSpelling::byte_level, pieces, {0, 1, 2}), "The code\n");
  EXPECT_EQ(text(TokenSpelling::byte_level, pieces, {3}), "\u20ac") << "a character of three bytes";
  EXPECT_EQ(text(TokenSpelling::byte_level, pieces, {4, 5}), "<|im_end|>\u4e2d") << "what stands for no byte";
  EXPECT_EQ(text(TokenSpelling::byte_level, pieces, {6}), std::string("\0\xad\xff", 3))
      << "the first, the last, and one between";
}

TEST(TokenTexts, OfSentencepieceHaveAMarkForSpacesAndNamesForBytes) {
  const std::vector<std::string> pieces{"\u2581The", "\u2581\u2581a", "<0x0A>", "<0xE2>", "<0xZZ>", "</s>"};
  EXPECT_EQ(text(TokenSpelling::sentencepiece, pieces, {0, 1, 2, 3}), " The  a\n\xe2");
  EXPECT_EQ(text(TokenSpelling::sentencepiece, pieces, {4, 5}), "<0xZZ></s>");
}

TEST(TokenTexts, HaveNoTextForTokensThatTheTokenizerDoesNotKnow) {
  for (const TokenSpelling spelling : {TokenSpelling::byte_level, TokenSpelling::sentencepiece}) {
    EXPECT_EQ(text(spelling, {"a"}, {-1, 0, 1, int64_t{1} << 40}), "a");
  }
}

}  // namespace
}  // namespace kvbound::traces::token_texts_test
