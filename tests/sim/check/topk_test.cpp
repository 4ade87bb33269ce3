#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/sim/check/topk.hpp>

#include "support/kernel_file.hpp"

namespace kvbound::sim::topk_test {
namespace {

using testing::HasSubstr;

test::KernelFile file(std::vector<double> scores, std::vector<int64_t> indices) {
  test::KernelFile result;
  result.reals["scores"] = {{1, std::ssize(scores)}, scores};
  result.integers["indices"] = {{1, std::ssize(indices)}, indices};
  return result;
}

TensorAgreement judged(const test::KernelFile& given) {
  return given.checked([](CheckFile& opened) { return check_topk(opened, {}); }).tensors.front();
}

std::string fault(const test::KernelFile& given) {
  const TensorAgreement found = judged(given);
  return found.agrees() ? "" : found.worst->note;
}

TEST(Topk, TakesTheSetInAnyOrder) {
  const std::vector<double> scores{5, 1, 4, 2, 3};
  EXPECT_EQ(fault(file(scores, {0, 2, 4})), "");
  EXPECT_EQ(fault(file(scores, {4, 0, 2})), "");
  EXPECT_THAT(fault(file(scores, {0, 2, 3})), HasSubstr("2 against 3"));
  test::KernelFile ordered = file(scores, {4, 0, 2});
  ordered.options["order"] = "descending";
  EXPECT_THAT(fault(ordered), HasSubstr("stands before"));
  ordered.integers["indices"].second = {0, 2, 4};
  EXPECT_EQ(fault(ordered), "");
}

TEST(Topk, CountsWrongEntriesAndTies) {
  EXPECT_EQ(judged(file({6, 5, 4, 3, 2, 1}, {0, 4, 5})).outside, 2);
  EXPECT_EQ(judged(file({2, 1, 1, 1, 0}, {0, 2, 3})).near_tie_swaps, 1);
  EXPECT_EQ(judged(file({2, 1, 1, 1, 0}, {0, 1, 2})).near_tie_swaps, 0);
}

TEST(Topk, NamesWhatIsNoSet) {
  const std::vector<double> scores{5, 1, 4};
  EXPECT_THAT(fault(file(scores, {0, 3})), HasSubstr("is 3; the row has entries 0 to 2"));
  EXPECT_THAT(fault(file(scores, {0, -2})), HasSubstr("is -2"));
  EXPECT_THAT(fault(file(scores, {0, 0})), HasSubstr("holds already"));
  EXPECT_THAT(fault(file(scores, {-1, 0})), HasSubstr("behind a slot without an entry"));
  EXPECT_THAT(fault(file(scores, {0, -1})), HasSubstr("holds 1 entries; expected 2"));
  EXPECT_EQ(fault(file(scores, {0, 1, 2, -1})), "");
}

TEST(Topk, AllowsTheErrorsOfBothScores) {
  test::KernelFile given = file({3, 2, 1}, {0, 2});
  given.options["score_error"] = "0.5";
  EXPECT_EQ(fault(given), "");
  given.options["score_error"] = "0.49";
  EXPECT_NE(fault(given), "");
  given.options.clear();
  given.reals["score_error"] = {{1, 3}, {0, 0.9, 0.1}};
  EXPECT_EQ(fault(given), "");
  given.reals["score_error"] = {{1, 3}, {9, 0.8, 0.1}};
  EXPECT_NE(fault(given), "");
}

TEST(Topk, OrdersAreOfAllScoresBefore) {
  test::KernelFile given = file({1, 1.9, 2.8}, {0, 1, 2});
  given.options = {{"order", "descending"}, {"score_error", "0.5"}};
  EXPECT_NE(fault(given), "") << "no scores within the errors descend";
  given.options["score_error"] = "0.9";
  EXPECT_EQ(fault(given), "");
}

TEST(Topk, OnlyScoresBelowTheLengthCount) {
  test::KernelFile given = file({1, 2, 9, 9}, {1, 0, -1});
  given.integers["lengths"] = {{1}, {2}};
  EXPECT_EQ(fault(given), "");
  given.integers["indices"].second = {2, 3, 1};
  EXPECT_THAT(fault(given), HasSubstr("the row has entries 0 to 1"));
}

TEST(Topk, IsNoEvidenceWhereNoSelectionCouldBeWrong) {
  EXPECT_EQ(judged(file({1, 1, 1}, {2})).judged, 0);
  EXPECT_EQ(judged(file({1, 1, 1}, {2, 0, 1})).judged, 3) << "all entries, each once";
  EXPECT_EQ(judged(file({1, 2, 1}, {1})).judged, 1);
}

}  // namespace
}  // namespace kvbound::sim::topk_test
