#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/sim/check/compact.hpp>

#include "support/kernel_file.hpp"

namespace kvbound::sim::compact_test {
namespace {

using testing::HasSubstr;

// Two KV heads of four rows of one number: 0..3 and 10..13. Kept: 1 and 3 of the first, 2 of the second.
test::KernelFile file(std::vector<int64_t> shape, std::vector<double> after) {
  test::KernelFile result;
  result.reals["before"] = {{2, 4, 1}, {0, 1, 2, 3, 10, 11, 12, 13}};
  result.integers["kept"] = {{3}, {1, 3, 2}};
  result.integers["kept_offsets"] = {{3}, {0, 2, 3}};
  result.reals["after"] = {shape, after};
  return result;
}

TensorAgreement judged(const test::KernelFile& given) {
  return given.checked([](CheckFile& opened) { return check_compact(opened); }).tensors.front();
}

std::string fault(const test::KernelFile& given) {
  const TensorAgreement found = judged(given);
  return found.agrees() ? "" : traces::shape_text(found.worst->index) + " " + found.worst->note;
}

// Pages of two rows: the first head's is page 2, the second's page 0, whose second row is unused.
test::KernelFile paged() {
  test::KernelFile result = file({3, 2, 1}, {12, -7, -7, -7, 1, 3});
  result.integers["kv_indices"] = {{2}, {2, 0}};
  result.integers["kv_indptr"] = {{3}, {0, 1, 2}};
  result.integers["kv_last_page_len"] = {{2}, {2, 1}};
  result.options["poison"] = "-7";
  return result;
}

TEST(Compact, TakesEveryKeptRowOnce) {
  EXPECT_EQ(fault(file({3, 1}, {1, 3, 12})), "");
  EXPECT_EQ(fault(file({3, 1}, {3, 1, 12})), "");
  EXPECT_EQ(fault(file({3, 1}, {1, 1, 12})), "[1] holds row 1 of KV head 0, which is held already");
  EXPECT_EQ(fault(file({3, 1}, {1, 2, 12})), "[1] holds row 2 of KV head 0, which is not kept");
  EXPECT_EQ(fault(file({3, 1}, {1, 3, 3})), "[2] holds row 3 of KV head 0, which is not kept");
  EXPECT_EQ(fault(file({3, 1}, {1, 3, 12.5})), "[2] holds no row of before");
}

TEST(Compact, TakesTheOrderThatIsAskedFor) {
  test::KernelFile given = file({3, 1}, {3, 1, 12});
  given.options["order"] = "ascending";
  EXPECT_THAT(fault(given), HasSubstr("[0] holds row 3 of KV head 0, which is not row 1"));
  given.integers["kept"].second = {3, 1, 2};
  EXPECT_NE(fault(given), "");
  given.options["order"] = "kept";
  EXPECT_EQ(fault(given), "");
}

TEST(Compact, FindsRowsInPages) {
  EXPECT_EQ(fault(paged()), "");
  test::KernelFile written = paged();
  written.reals["after"].second[1] = 0;
  EXPECT_EQ(fault(written), "[0, 1] is unused, but was written");
  test::KernelFile longer = paged();
  longer.integers["kv_last_page_len"].second = {2, 2};
  EXPECT_THAT(fault(longer), HasSubstr("KV head 1 has 2 rows; 1 are kept"));
}

TEST(Compact, CountsRowsThatAreMissing) {
  test::KernelFile given = paged();
  given.integers["kv_last_page_len"].second = {1, 1};
  EXPECT_EQ(judged(given).outside, 2) << "one is missing, and an unused one was written";
  given.options.erase("poison");
  EXPECT_EQ(judged(given).outside, 1);
  given.integers["kv_last_page_len"].second = {2, 2};
  EXPECT_EQ(judged(given).outside, 1);
  given.options["order"] = "kept";
  EXPECT_EQ(judged(given).outside, 1);
}

TEST(Compact, FindsRowsInPagesOfAllHeads) {
  test::KernelFile given = file({2, 2, 2, 1}, {-7, -7, -7, -7, 1, 10, 3, 12});
  given.integers["kept"] = {{4}, {1, 3, 0, 2}};
  given.integers["kept_offsets"] = {{3}, {0, 2, 4}};
  given.integers["kv_indices"] = {{1}, {1}};
  given.integers["kv_indptr"] = {{2}, {0, 1}};
  given.integers["kv_last_page_len"] = {{1}, {2}};
  given.options["order"] = "kept";
  EXPECT_EQ(fault(given), "");
  given.options["kv_layout"] = "HND";
  EXPECT_NE(fault(given), "");
  given.reals["after"].second = {-7, -7, -7, -7, 1, 3, 10, 12};
  EXPECT_EQ(fault(given), "");
}

TEST(Compact, DenseRowsHaveRoomBehindThem) {
  test::KernelFile given = file({2, 3, 1}, {1, 3, -7, 12, -7, -7});
  EXPECT_EQ(fault(given), "");
  given.options["poison"] = "-7";
  EXPECT_EQ(fault(given), "");
  given.reals["after"].second[5] = 13;
  EXPECT_EQ(fault(given), "[1, 2] is unused, but was written");
}

TEST(Compact, IsNoEvidenceWhereAllRowsAreAlike) {
  test::KernelFile given = file({3, 1}, {1, 1, 12});
  given.reals["before"].second = {1, 1, 1, 1, 10, 11, 12, 13};
  EXPECT_EQ(judged(given).judged, 1);
  given.reals["before"].second[0] = 0;  // a row that might have been moved in place of a kept one
  EXPECT_EQ(judged(given).judged, 3);
}

TEST(Compact, IsEvidenceOfASingleRowUnlessZerosWouldPass) {
  test::KernelFile given = file({1, 1}, {5});
  given.reals["before"] = {{1, 1, 1}, {5}};
  given.integers["kept"] = {{1}, {0}};
  given.integers["kept_offsets"] = {{2}, {0, 1}};
  EXPECT_EQ(judged(given).judged, 1);
  given.reals["before"].second = given.reals["after"].second = {0};
  EXPECT_EQ(judged(given).judged, 0);
}

TEST(Compact, PoisonIsANumberOfTheTensorsType) {
  test::KernelFile given = paged();
  for (double& number : given.reals["after"].second) number = number == -7 ? 0.1 : number;
  given.options["poison"] = "0.1";
  EXPECT_EQ(fault(given), "");
  given.options["poison"] = "0x3fb999999999999a";
  EXPECT_EQ(fault(given), "");
  for (double& number : given.reals["after"].second) number = number == 0.1 ? -0.0 : number;
  given.options["poison"] = "0";
  EXPECT_EQ(fault(given), "[0, 1] is unused, but was written") << "-0 has other bits";
}

}  // namespace
}  // namespace kvbound::sim::compact_test
