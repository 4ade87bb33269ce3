#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/judge/prompt_errors.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/session_cases.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::prompt_errors_test {
namespace {

const auto* const kOneThread = testing::AddGlobalTestEnvironment(new test::OneThread);

using reference::Arithmetic;

constexpr int64_t kTokens = 20, kBudget = 10;

traces::Layer layer_of(uint64_t seed) { return test::trace_layer({{4, 2, 6, 9}, kTokens, 8, 0, seed}); }

PromptRecord record_of(const traces::Layer& layer, const Policy& policy) {
  return reference::make_session()->compress(layer.prompt(), policy,
                                             test::Positions(layer.shape.kv_heads, kBudget));
}

PromptErrors errors_of(const traces::Layer& layer, const std::string& policy,
                       const OperationArithmetic& arithmetic = reference::double_precision()) {
  const TestedImplementation implementation{parse_policy(policy), kBudget, 0, arithmetic, Dtype::f64};
  return {layer.prompt(), implementation, record_of(layer, implementation.policy)};
}

// Double-precision arithmetic on inputs that were stored in single precision.
Arithmetic single_inputs() {
  Arithmetic arithmetic = reference::double_precision();
  arithmetic.input = 0x1p-24;
  return arithmetic;
}

// Requires that the implementation's numbers are within the errors of the reference's, while those of the
// next column often are not.
void expect_within(MatrixView theirs, MatrixView own, const Matrix& errors, const char* what) {
  ASSERT_EQ(errors.rows(), own.rows) << what;
  ASSERT_EQ(errors.cols(), own.cols) << what;
  int64_t different = 0, shifted = 0;
  for (int64_t i = 0; i < own.rows; ++i) {
    for (int64_t j = 0; j < own.cols; ++j) {
      EXPECT_LE(std::abs(theirs(i, j) - own(i, j)), errors(i, j)) << what << " " << i << " " << j;
      EXPECT_LT(errors(i, j), 1e-4 * std::abs(own(i, j)) + 1e-8) << what;
      different += theirs(i, j) != own(i, j);
      if (j > 0) shifted += std::abs(theirs(i, j - 1) - own(i, j)) > errors(i, j);
    }
  }
  EXPECT_GT(different, 0) << what << ": rounding was to matter";
  EXPECT_GT(shifted, own.rows * (own.cols - 1) / 5) << what << ": numbers are told from each other";
}

const std::vector<std::string> kPolicies{"snapkv:window=6:pool=1",
                                         "snapkv:window=6:pool=5",
                                         "snapkv:window=6:pool=1+obcache-joint",
                                         "h2o:window=6:recent=3",
                                         "h2o:window=6:recent=3+exact:space=projected",
                                         "tova:sinks=2",
                                         "tova+obcache-value",
                                         "snapkv:window=6:pool=3+critical",
                                         "h2o:window=6:recent=3+critical:norm=l2:gqa=product-of-means",
                                         "snapkv:window=6:pool=1+theta-sweep:norm=l2"};

TEST(PromptErrors, HoldWhatInputsInSinglePrecisionGiveAndNoOtherEntrysNumbers) {
  for (const std::string& policy : kPolicies) {
    SCOPED_TRACE(policy);
    const traces::Layer layer = layer_of(3), stored = test::stored_in_single_precision(layer);
    const PromptRecord own = record_of(layer, parse_policy(policy)),
                       theirs = record_of(stored, parse_policy(policy));
    const PromptErrors errors = errors_of(layer, policy, single_inputs());
    expect_within(theirs.score, own.score, errors.score, "score");
    expect_within(errors_of(stored, policy).ranking.head_scores, errors.ranking.head_scores,
                  errors.head_score, "head score");
    EXPECT_EQ(errors.norms.rows() > 0, own.projected_value_norms.has_value());
    if (own.projected_value_norms) {
      expect_within(*theirs.projected_value_norms, *own.projected_value_norms, errors.norms, "norms");
    }
    if (own.stage_two_score) {
      expect_within(*theirs.stage_two_score, *own.stage_two_score, errors.stage_two_score, "stage two");
    }
  }
}

TEST(PromptErrors, HoldTheWindowsUnpooledMeanWhateverTheHostRanksBy) {
  for (const char* policy : {"snapkv:window=6:pool=5", "h2o:window=6:recent=3", "tova"}) {
    SCOPED_TRACE(policy);
    const traces::Layer layer = layer_of(4), stored = test::stored_in_single_precision(layer);
    const PromptErrors errors = errors_of(layer, policy, single_inputs());
    ASSERT_EQ(errors.weights.cols(), kTokens);
    for (int64_t h = 0; h < 4; ++h) {
      double sum = 0;
      for (const double weight : errors.weights.row(h)) sum += weight;
      EXPECT_NEAR(sum, 1, 1e-12) << "a mean of weights that sum to 1";
    }
    expect_within(errors_of(stored, policy).weights, errors.weights, errors.weight_errors, "weights");
  }
  EXPECT_EQ(errors_of(layer_of(4), "h2o:window=6:recent=3+exact").weights.rows(), 0)
      << "only the attention score has them";
}

TEST(PromptErrors, AreThoseOfASumWhereTheHostAddsUpItsWindow) {
  const traces::Layer layer = layer_of(5);
  const Matrix mean = errors_of(layer, "snapkv:window=6:pool=1").head_score,
               sum = errors_of(layer, "h2o:window=6:recent=3").head_score;
  ASSERT_EQ(mean.cols(), kTokens - 6);
  ASSERT_EQ(sum.cols(), kTokens);
  for (int64_t h = 0; h < 4; ++h) {
    for (int64_t j = 0; j < mean.cols(); ++j) {
      EXPECT_GT(sum(h, j), 4 * mean(h, j));
      EXPECT_LT(sum(h, j), 9 * mean(h, j));
    }
  }
}

TEST(PromptErrors, AreThePoolsLargest) {
  const traces::Layer layer = layer_of(6);
  const Matrix apart = errors_of(layer, "snapkv:window=6:pool=1").head_score,
               pooled = errors_of(layer, "snapkv:window=6:pool=3").head_score;
  for (int64_t h = 0; h < 4; ++h) {
    for (int64_t j = 0; j < apart.cols(); ++j) {
      const double before = apart(h, std::max<int64_t>(j - 1, 0)),
                   after = apart(h, std::min(j + 1, apart.cols() - 1));
      EXPECT_EQ(pooled(h, j), std::max({before, apart(h, j), after}));
    }
  }
}

TEST(PromptErrors, AreTheGroupsMeanOfAttentionAndItsSumOfOtherScores) {
  const traces::Layer layer = layer_of(7);
  for (const bool sums : {false, true}) {
    const PromptErrors errors =
        errors_of(layer, sums ? "tova+obcache-value" : "tova", reference::single_precision());
    for (int64_t j = 0; j < kTokens; ++j) {
      const double both = errors.head_score(2, j) + errors.head_score(3, j), exact = sums ? both : both / 2;
      EXPECT_GE(errors.score(1, j), exact);
      EXPECT_LT(errors.score(1, j), 1.2 * exact);
    }
  }
}

TEST(PromptErrors, AreByTheArithmeticOfEachOperation) {
  const traces::Layer layer = layer_of(8);
  OperationArithmetic scores(reference::double_precision()), norms = scores;
  scores.window_attention = reference::single_precision();
  norms.projected_value_norms = reference::single_precision();
  const std::string policy = "snapkv:window=6:pool=1+critical";
  const PromptErrors by_scores = errors_of(layer, policy, scores), by_norms = errors_of(layer, policy, norms);
  EXPECT_GT(by_scores.score(0, 0), 1e5 * by_norms.score(0, 0));
  EXPECT_GT(by_norms.norms(0, 0), 1e5 * by_scores.norms(0, 0));
  for (const PromptErrors* errors : {&by_scores, &by_norms}) {
    EXPECT_GT(errors->stage_two_score(0, 0), 1e-9) << "either enters stage two";
  }
}

TEST(PromptErrors, AreNoneOfHostsThatRankNothing) {
  for (const char* host : {"streaming-llm:sinks=2", "random:sinks=2:window=3"}) {
    const PromptErrors errors = errors_of(layer_of(9), host);
    EXPECT_EQ(errors.score.rows(), 0);
    EXPECT_EQ(errors.head_score.rows(), 0);
    EXPECT_EQ(errors.weights.rows(), 0);
    EXPECT_EQ(errors.norms.rows(), 0);
  }
}

TEST(OperationArithmetic, TilesAndPartsAreOfOutputsAlone) {
  reference::Arithmetic declared = reference::tensor_core_precision();
  declared.tile = 64;
  declared.splits = 4;
  const OperationArithmetic tiled(declared);
  for (const reference::Arithmetic& scores : {tiled.window_attention, tiled.change_scores}) {
    EXPECT_EQ(scores.tile, 0);
    EXPECT_EQ(scores.splits, 0);
  }
  EXPECT_EQ(tiled.attention.tile, 64);
  EXPECT_EQ(tiled.attention.splits, 4);
  declared.tile = reference::kAnyTile;
  EXPECT_EQ(OperationArithmetic(declared).window_attention.tile, reference::kAnyTile);
}

}  // namespace
}  // namespace kvbound::sim::prompt_errors_test
