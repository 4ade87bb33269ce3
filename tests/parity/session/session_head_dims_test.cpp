// Whole sessions of every head_dim that models have, by methods that together launch the kernels of all
// operations: small enough for compute-sanitizer. That results are right is for each operation's own suite.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/session.hpp>

#include "decoding_cases.hpp"

namespace kvbound::parity {
namespace {

class SessionHeadDims : public DeviceTest, public testing::WithParamInterface<int64_t> {
 protected:
  std::unique_ptr<Session> compressed(const Policy& policy) const {
    std::unique_ptr<Session> session = cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16);
    session->compress(decoding_.layer(), policy, std::vector<int64_t>(decoding_.shape.kv_heads, 20));
    return session;
  }

  Decoding decoding_{.tokens = 40, .shape = {2, 1, GetParam(), 16}};
};

// Window attention, scores by removal with all measures, projected norms, and every kind of merge.
TEST_P(SessionHeadDims, StepsTakenTogetherGiveTheSameBits) {
  const std::vector<StepView> steps{decoding_.step(0), decoding_.step(1)};
  for (const NamedPolicy& one :
       policies_named({"h2o+joint", "h2o+critical", "h2o+keepkv", "h2o+d2o", "h2o+cam"})) {
    SCOPED_TRACE(one.name);
    const std::unique_ptr<Session> one_by_one = compressed(one.policy), together = compressed(one.policy);
    const std::vector<StepRecord> records = together->steps(steps);
    ASSERT_EQ(records.size(), steps.size());
    for (size_t t = 0; t < steps.size(); ++t) {
      const StepRecord expected = one_by_one->step(steps[t]);
      expect_equal(records[t], expected);
      for (const double number : expected.output.numbers()) {
        EXPECT_TRUE(std::isfinite(number) && number != 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SessionHeadDims, testing::Values(64, 80, 96, 128, 192, 256),
                         [](const auto& tested) { return std::to_string(tested.param); });

}  // namespace
}  // namespace kvbound::parity
