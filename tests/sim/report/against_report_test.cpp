#include <gtest/gtest.h>

#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/report/against_report.hpp>

namespace kvbound::sim::against_report_test {
namespace {

// A dump's report, which agrees.
DiffReport agreeing(const std::string& path) {
  DiffReport report;
  report.dump_path = path;
  report.dump.policy = parse_policy("snapkv");
  report.dump.tensors = {"output"};
  TensorAgreement output;
  output.tensor = "output";
  output.elements = output.judged = 8;
  report.tensors.push_back({3, output});
  return report;
}

// Two dumps that agree, whose rows [2, 2] of layer 3 have these verdicts.
AgainstReport report_of(const std::vector<RowVerdict>& verdicts) {
  AgainstReport report{agreeing("one"), agreeing("other"), {}};
  TensorRows rows;
  rows.tensor = "output";
  rows.extents = {2, 2};
  for (const RowVerdict verdict : verdicts) {
    if (verdict != RowVerdict::identical) rows.differing.push_back({rows.rows(), rows.rows(), verdict});
    ++rows.counts[static_cast<size_t>(verdict)];
  }
  report.compared.layers.push_back({3, {{rows}, {}}});
  return report;
}

std::string first_line(const AgainstReport& report) {
  const std::string text = text_report(report, against_part(report), {});
  return text.substr(0, text.find('\n'));
}

using enum RowVerdict;

TEST(AgainstReport, AgreesWhereNoRowIsWrongWhateverTheirBits) {
  EXPECT_EQ(report_of({identical, identical}).verdict(), Verdict::agrees);
  EXPECT_EQ(report_of({identical, reordered, other_cache}).verdict(), Verdict::agrees);
}

TEST(AgainstReport, DiffersWhereOneDumpDoes) {
  for (DiffReport AgainstReport::*side : {&AgainstReport::a, &AgainstReport::b}) {
    AgainstReport report = report_of({identical});
    (report.*side).tensors[0].agreement.outside = 1;
    EXPECT_EQ(report.verdict(), Verdict::differs);
  }
}

TEST(AgainstReport, IsNoEvidenceWhereOneDumpIsNoneOrNoRowIsInBoth) {
  for (DiffReport AgainstReport::*side : {&AgainstReport::a, &AgainstReport::b}) {
    AgainstReport report = report_of({identical});
    (report.*side).tensors[0].agreement.undecided = 1;
    EXPECT_EQ(report.verdict(), Verdict::no_evidence);
  }
  EXPECT_EQ(report_of({}).verdict(), Verdict::no_evidence);
  EXPECT_EQ(first_line(report_of({})), "A one and B other: no row is in both");
}

TEST(AgainstReport, DiffersWhereIdenticalRowsAreRequiredAndOneIsNot) {
  AgainstReport report = report_of({identical, identical, other_cache, reordered});
  report.compared.identical = true;
  EXPECT_EQ(report.verdict(), Verdict::differs);
  EXPECT_EQ(report.compared.first_differing(), "layers.3.output[1, 0]: other cache");
  report.a.tensors[0].agreement.undecided = 1;
  EXPECT_EQ(report.verdict(), Verdict::differs) << "its bits are decided";
  AgainstReport same = report_of({identical});
  same.compared.identical = true;
  EXPECT_EQ(same.verdict(), Verdict::agrees);
  EXPECT_FALSE(same.compared.first_differing());
}

TEST(AgainstReport, BeginsWithASentence) {
  AgainstReport report = report_of({identical, reordered, reordered, undecided});
  EXPECT_EQ(first_line(report),
            "A one and B other: 1 of 4 rows identical, 2 reordered, 1 undecided, none wrong");
  report.compared.layers[0].rows.tensors[0].distances = Distances{Dtype::f32, {{0, 1, 0}, 1, 2, 2.5}, 0.5};
  EXPECT_EQ(
      first_line(report),
      "A one and B other: 1 of 4 rows identical, 2 reordered (at most 2.5 ulps apart, 0.5 of the row's largest "
      "number), 1 undecided, none wrong");
  EXPECT_EQ(first_line(report_of({identical, wrong_a, both_wrong, wrong_b})),
            "A one and B other: 1 of 4 rows identical, 1 wrong: A, 1 wrong: B, 1 both wrong");
  report.b.tensors[0].agreement.outside = 1;
  EXPECT_NE(first_line(report).find(", none wrong of these, but what B has alone is"), std::string::npos);
}

}  // namespace
}  // namespace kvbound::sim::against_report_test
