// What is shown of text of unknown origin.
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <kvbound/sim/options/command_line.hpp>

namespace kvbound::sim {
namespace {

TEST(OneLine, IsTheTextWhereItIsPlain) {
  for (const char* text :
       {"", "a b", "name.safetensors", "\u00fcber", "\u4e2d\u6587", "\U0001f600", "\u00a0", "\ud7ff\ue000"})
    EXPECT_EQ(one_line(text), text);
}

TEST(OneLine, ShowsControlCharactersAsBytes) {
  EXPECT_EQ(one_line(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(one_line("two\nlines\r\t\x1b[31m\x7f"), "two\\x0alines\\x0d\\x09\\x1b[31m\\x7f");
  EXPECT_EQ(one_line("\u0080\u0085\u009b31m\u009f"), "\\xc2\\x80\\xc2\\x85\\xc2\\x9b31m\\xc2\\x9f") << "C1";
  EXPECT_EQ(one_line("\u2028\u2029"), "\\xe2\\x80\\xa8\\xe2\\x80\\xa9") << "separators of lines";
  EXPECT_EQ(one_line("\u200fa\u061c"), "\\xe2\\x80\\x8fa\\xd8\\x9c") << "marks of a direction";
  EXPECT_EQ(one_line("\u202egnp.\u2066x"), "\\xe2\\x80\\xaegnp.\\xe2\\x81\\xa6x") << "directions of text";
}

TEST(OneLine, ShowsWhatIsNoUtf8AsBytes) {
  EXPECT_EQ(one_line("a\xffz"), "a\\xffz");
  EXPECT_EQ(one_line("\x9b"), "\\x9b") << "C1 of a terminal in ISO 8859";
  EXPECT_EQ(one_line("\xc3"), "\\xc3") << "cut off";
  EXPECT_EQ(one_line("\xe4\xb8z"), "\\xe4\\xb8z") << "cut off";
  EXPECT_EQ(one_line("\xc0\xaf\xe0\x80\xaf\xf0\x80\x80\xaf"), "\\xc0\\xaf\\xe0\\x80\\xaf\\xf0\\x80\\x80\\xaf")
      << "longer than need be";
  EXPECT_EQ(one_line("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(one_line("\xf4\x90\x80\x80\xf5"), "\\xf4\\x90\\x80\\x80\\xf5") << "beyond U+10FFFF";
}

}  // namespace
}  // namespace kvbound::sim
