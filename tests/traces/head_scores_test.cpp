#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/head_scores.hpp>

namespace kvbound::traces::head_scores_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string file(const std::string& scores) {
  return R"({"format": "kvbound-head-scores", "version": 1, "model": "m", "scores": )" + scores + "}";
}

std::string refusal(const std::string& text) {
  try {
    parse_head_scores("scores.json", text);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HeadScores, AreTheDecimalsAsTheyArePrinted) {
  const auto read =
      parse_head_scores("/a/b/../scores.json", file("[[0.10, 1e-3], [-0, 12345678901234567890123]]"));
  EXPECT_EQ(read->path, "/a/scores.json");
  EXPECT_EQ(read->model, "m");
  EXPECT_EQ(read->text, file("[[0.10, 1e-3], [-0, 12345678901234567890123]]"));
  EXPECT_THAT(read->scores,
              ElementsAre(ElementsAre("0.10", "1e-3"), ElementsAre("-0", "12345678901234567890123")));
}

TEST(HeadScores, AreRefusedWhereTheyAreNone) {
  EXPECT_THAT(refusal(file("[[1, 2], [3]]")), HasSubstr("scores[1]: has 1 heads, but the first layer has 2"));
  EXPECT_THAT(refusal(file("[[1, -2]]")),
              HasSubstr("scores[0][1]: is -2; expected 0, or a finite number from 1e-300"));
  EXPECT_THAT(refusal(file("[[1e-301]]")), HasSubstr("scores[0][0]: is 1e-301; expected 0, or"));
  EXPECT_THAT(refusal(file("[[1." + std::string(63, '0') + "]]")),
              HasSubstr("is printed with 65 characters; expected at most 64"));
  EXPECT_THAT(refusal(file("[[0, 0.0]]")), HasSubstr("scores: are all 0; expected a positive one"));
  EXPECT_THAT(refusal(file("[[1e400]]")), HasSubstr("scores.json: at byte "));
  EXPECT_THAT(refusal(file("[[null]]")), HasSubstr("scores[0][0]: is null; expected"));
  EXPECT_THAT(refusal(file("[[]]")), HasSubstr("scores[0]: "));
  EXPECT_THAT(refusal(file("[]")), HasSubstr("scores: "));
  EXPECT_THAT(refusal(R"({"format": "kvbound-given"})"), HasSubstr("format: is "));
}

}  // namespace
}  // namespace kvbound::traces::head_scores_test
