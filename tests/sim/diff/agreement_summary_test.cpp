#include <gtest/gtest.h>

#include <kvbound/sim/diff/agreement_summary.hpp>

namespace kvbound::sim::agreement_summary_test {
namespace {

JudgedTensor judged(const std::string& tensor, int64_t elements, int64_t judged, int64_t undecided = 0) {
  TensorAgreement agreement;
  agreement.tensor = tensor;
  agreement.elements = elements;
  agreement.judged = judged;
  agreement.undecided = undecided;
  agreement.worst = Offender{{0}, 1, 1, 0, 0.5, Dtype::f64, {}};
  return {3, agreement};
}

Verdict verdict_on(const std::vector<JudgedTensor>& tensors) { return verdict(summaries(tensors)); }
std::string unjudged(const std::vector<JudgedTensor>& tensors) {
  return text_of_unjudged(summaries(tensors));
}

TEST(AgreementSummary, AgreesOnlyIfEveryTensorIsJudged) {
  EXPECT_EQ(verdict_on({}), Verdict::no_evidence);
  EXPECT_EQ(verdict_on({judged("score", 9, 1), judged("output", 8, 8)}), Verdict::agrees);
  EXPECT_EQ(verdict_on({judged("score", 9, 9), judged("output", 8, 0)}), Verdict::no_evidence);
  EXPECT_EQ(verdict_on({judged("score", 9, 9), judged("output", 8, 7, 1)}), Verdict::no_evidence);
  EXPECT_EQ(verdict_on({judged("score", 9, 9), judged("output", 0, 0)}), Verdict::agrees);
  EXPECT_EQ(verdict_on({judged("score", 9, 9), judged("perturbation", 8, 0)}), Verdict::agrees)
      << "it follows from what is judged";
  JudgedTensor wrong = judged("output", 8, 8);
  wrong.agreement.outside = 1;
  EXPECT_EQ(verdict_on({judged("score", 9, 0), wrong}), Verdict::differs);
}

TEST(AgreementSummary, SaysWhatIsNotJudgedAndWhy) {
  JudgedTensor keys = judged("merged_key", 90, 80, 10), others = judged("merged_key", 10, 10);
  keys.agreement.condition_number = 3.25;
  others.agreement.condition_number = 2;
  EXPECT_EQ(unjudged({judged("kept", 5, 5), judged("perturbation", 8, 0)}), "");
  EXPECT_EQ(unjudged({keys, others, judged("output", 8, 0)}),
            "merged_key: 10 of 100 undecided, condition number 3.25; output: none of 8 judged");
}

}  // namespace
}  // namespace kvbound::sim::agreement_summary_test
