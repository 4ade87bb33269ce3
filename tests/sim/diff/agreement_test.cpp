#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/measure/metrics.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/session_cases.hpp"
#include "support/trace_layer.hpp"

namespace kvbound::sim::agreement_test {
namespace {

const auto* const kOneThread = testing::AddGlobalTestEnvironment(new test::OneThread);

using test::Positions;

traces::Layer layer_of(int64_t group_size, uint64_t seed) {
  return test::trace_layer(test::random_layer(group_size, seed));
}

constexpr int64_t kEntries = 14;

// The reference's record of a replay.
LayerRecord record_of(const traces::Layer& layer, const Policy& policy, int64_t steps = test::kSteps) {
  const auto session = reference::make_session();
  LayerRecord record;
  const Positions budgets(layer.shape.kv_heads, kEntries);
  record.prompt = session->compress(layer.prompt(), policy, budgets);
  for (int64_t t = 0; t < steps; ++t) record.steps.push_back(session->step(layer.step(t)));
  return record;
}

TestedImplementation implementation(const Policy& policy,
                                    const reference::Arithmetic& arithmetic = reference::double_precision()) {
  return {policy, kEntries, test::kSteps, arithmetic, Dtype::f64};
}

const TensorAgreement& find(const std::vector<TensorAgreement>& all, const std::string& tensor) {
  const auto found = std::ranges::find(all, tensor, &TensorAgreement::tensor);
  if (found == all.end()) throw std::out_of_range(tensor + " was not judged");
  return *found;
}

bool agrees(const std::vector<TensorAgreement>& all) {
  return std::ranges::all_of(all, [](const TensorAgreement& tensor) { return tensor.agrees(); });
}

TEST(Agreement, OfTheReferenceWithItselfIsCompleteForEveryPolicy) {
  for (const int64_t group_size : test::kGroupSizes) {
    const traces::Layer layer = layer_of(group_size, 5);
    for (const Policy& policy : test::all_policies()) {
      const std::vector<TensorAgreement> found =
          agreement(layer, implementation(policy), claims_of(record_of(layer, policy)));
      EXPECT_TRUE(agrees(found));
      for (const TensorAgreement& tensor : found) EXPECT_EQ(tensor.judged, tensor.elements) << tensor.tensor;
      EXPECT_EQ(find(found, "kept").near_tie_swaps, 0);
      EXPECT_EQ(find(found, "output").elements, test::kSteps * test::kQueryHeads * layer.shape.head_dim);
    }
  }
}

TEST(Agreement, NamesTensorsInTheOrderOfTheirNames) {
  const traces::Layer layer = layer_of(2, 5);
  const Policy policy = test::two_stage<Critical>(Decimal{5, 1}, GqaProduct::mean_of_products, Norm::l1);
  std::vector<std::string> names;
  for (const TensorAgreement& tensor :
       agreement(layer, implementation(policy), claims_of(record_of(layer, policy)))) {
    names.push_back(tensor.tensor);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"score_positions", "score", "projected_value_norms",
                                             "stage_two_score", "kept", "output"}));
}

TEST(Agreement, JudgesOutputsOnTheClaimedCache) {
  const traces::Layer layer = layer_of(2, 6);
  LayerRecord record = record_of(layer, test::kTopK);
  LayerClaims claims = claims_of(record);
  std::vector<Positions>& kept = *claims.kept;
  // The best candidate is replaced with the worst.
  const VectorView score = record.prompt.score.row(0);
  const auto best = std::ranges::max_element(score) - score.begin();
  const auto worst = std::ranges::min_element(score) - score.begin();
  std::ranges::replace(kept[0], best, worst);
  std::ranges::sort(kept[0]);
  std::vector<TensorAgreement> found = agreement(layer, implementation(test::kTopK), claims);
  EXPECT_EQ(find(found, "kept").outside, 1);
  EXPECT_EQ(find(found, "kept").worst.value().claimed, static_cast<double>(worst));
  EXPECT_EQ(find(found, "kept").worst.value().expected, static_cast<double>(best));
  EXPECT_NEAR(find(found, "kept").worst.value().error, score[best] - score[worst], 1e-15);
  EXPECT_NE(find(found, "kept").worst.value().note.find("KV head 0"), std::string::npos);
  EXPECT_FALSE(find(found, "output").agrees()) << "they are of another cache";
  claims.kept.reset();
  found = agreement(layer, implementation(test::kTopK), claims);
  EXPECT_TRUE(agrees(found)) << "without a claim, the reference's own cache counts";
}

// Attention that is spread over many tokens: outputs are small beside what the rounding of
// weights may do to one element.
TEST(Agreement, FindsAHalvedOutputThoughEveryElementIsWithinItsBound) {
  const traces::Layer layer = test::trace_layer({{1, 1, 16, 4}, 60'000, 1, 1, 9});
  const Policy policy = parse_policy("snapkv:window=1:pool=1");
  TestedImplementation tested{policy, 60'000, 1, reference::double_precision(), Dtype::f64};
  tested.arithmetic.attention.weights = 0x1p-6;
  const auto session = reference::make_session();
  LayerRecord record;
  record.prompt = session->compress(layer.prompt(), policy, Positions{60'000});
  record.steps.push_back(session->step(layer.step(0)));
  LayerClaims claims;
  claims.output = claims_of(record).output;
  EXPECT_TRUE(agrees(agreement(layer, tested, claims)));
  for (double& number : claims.output->numbers) number /= 2;
  const TensorAgreement half = agreement(layer, tested, claims).front();
  EXPECT_EQ(half.outside, 0);
  EXPECT_FALSE(half.agrees());
  EXPECT_EQ(half.functionals.front().outside, 1);
  EXPECT_NEAR(half.functionals.front().all.value, 0.5, 1e-9);
}

TEST(Agreement, FindsEveryKeptSetThatIsNone) {
  const traces::Layer layer = layer_of(1, 7);
  const LayerRecord record = record_of(layer, test::kTopK);
  const auto outside = [&](const Positions& kept) {
    LayerClaims claims;
    claims.kept = record.prompt.kept;
    (*claims.kept)[2] = kept;
    const TensorAgreement found = agreement(layer, implementation(test::kTopK), claims).front();
    return found.outside > 0 ? found.worst.value().note : "";
  };
  const Positions& good = record.prompt.kept[2];
  const auto changed = [&](size_t at, int64_t position) {
    Positions kept = good;
    kept[at] = position;
    return kept;
  };
  EXPECT_EQ(outside(good), "");
  LayerClaims none;
  none.kept = record.prompt.kept;
  (*none.kept)[1].clear();
  (*none.kept)[2][0] = -1;
  EXPECT_EQ(agreement(layer, implementation(test::kTopK), none).front().outside_at, Positions{kEntries})
      << "an empty set has no element";
  EXPECT_EQ(outside(changed(0, -1)), "KV head 2: is no position of a prompt of 30 tokens");
  EXPECT_EQ(outside(changed(13, 30)), "KV head 2: is no position of a prompt of 30 tokens");
  EXPECT_EQ(outside(changed(13, 28)), "KV head 2: follows 28: positions must ascend");
  EXPECT_EQ(outside({}), "KV head 2: nothing is kept; the budget is 14");
  EXPECT_EQ(outside(Positions(good.begin() + 1, good.end())),
            "KV head 2: 13 entries are kept; the budget is 14");
  EXPECT_EQ(outside(test::range(0, 14)), "KV head 2: position 24 is missing, which is always kept");
}

TEST(Agreement, AllowsTiesAndCountsThem) {
  traces::Layer layer = layer_of(2, 8);
  // All tokens are equal, so every choice is a tie.
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    for (int64_t i = 1; i < layer.keys.slice(g).rows; ++i) {
      std::ranges::copy(layer.keys.slice(g).row(0), layer.keys.slice(g).row(i).begin());
      std::ranges::copy(layer.values.slice(g).row(0), layer.values.slice(g).row(i).begin());
    }
  }
  for (const Policy& policy : test::all_policies()) {
    LayerClaims claims = claims_of(record_of(layer, policy));
    Positions last = test::range(test::kTokens - kEntries, test::kTokens);
    const int64_t swaps = test::kTokens - test::kHost.window >= 2 * (kEntries - test::kHost.window)
                              ? kEntries - test::kHost.window
                              : 0;
    claims.kept = std::vector<Positions>(2, last);
    const std::vector<TensorAgreement> found = agreement(layer, implementation(policy), claims);
    EXPECT_TRUE(agrees(found));
    EXPECT_EQ(find(found, "kept").near_tie_swaps, 2 * swaps);
  }
}

TEST(Agreement, FindsAnyOneNumberThatIsOffByTwiceItsBound) {
  const traces::Layer layer = layer_of(2, 9);
  const Policy policy = test::two_stage<Critical>(Decimal{5, 1}, GqaProduct::mean_of_products, Norm::l2);
  const LayerRecord record = record_of(layer, policy);
  for (const reference::Arithmetic& arithmetic :
       {reference::double_precision(), reference::single_precision(), reference::tensor_core_precision()}) {
    for (const auto member : {&LayerClaims::score, &LayerClaims::projected_value_norms,
                              &LayerClaims::stage_two_score, &LayerClaims::output}) {
      LayerClaims claims = claims_of(record);
      std::vector<double>& numbers = (claims.*member)->numbers;
      for (size_t i = 0; i < numbers.size(); i += 7) {
        const double right = numbers[i];
        // A number that is far off is reported with its bound.
        numbers[i] = right + 1;
        std::vector<TensorAgreement> found = agreement(layer, implementation(policy, arithmetic), claims);
        const auto wrong =
            std::ranges::find_if(found, [](const TensorAgreement& tensor) { return !tensor.agrees(); });
        ASSERT_NE(wrong, found.end());
        const double bound = wrong->worst.value().bound;
        EXPECT_LT(bound, 0.05);
        for (const double factor : {2.0, -2.0, 0.5, -0.5}) {
          numbers[i] = right + factor * bound;
          EXPECT_EQ(agrees(agreement(layer, implementation(policy, arithmetic), claims)),
                    std::abs(factor) < 1)
              << factor;
        }
        numbers[i] = right;
        i += numbers.size() / 4;
      }
    }
  }
}

TEST(Agreement, AllowsForInputsThatStorageRounds) {
  const traces::Layer layer = layer_of(2, 11);
  const LayerClaims claims = claims_of(record_of(test::stored_in_single_precision(layer), test::kTopK));
  TestedImplementation tested = implementation(test::kTopK);
  EXPECT_FALSE(agrees(agreement(layer, tested, claims))) << "it says that it rounds nothing";
  tested.storage = Dtype::f32;
  const std::vector<TensorAgreement> found = agreement(layer, tested, claims);
  EXPECT_TRUE(agrees(found));
  EXPECT_EQ(find(found, "output").judged, find(found, "output").elements);
}

// The measured numbers of a record, as claims.
LayerClaims measured_claims(const traces::Layer& layer, const LayerRecord& record) {
  const LayerMetrics metrics = measure(layer, {record}).front();
  const auto claim = [](const Matrix& figures) {
    return RealClaim{{figures.rows(), figures.cols()}, {figures.numbers().begin(), figures.numbers().end()}};
  };
  LayerClaims claims;
  claims.kept = record.prompt.kept;
  claims.kept_mass = claim(metrics.kept_mass);
  if (metrics.bound) claims.bound = claim(*metrics.bound);
  claims.perturbation = claim(metrics.perturbation);
  claims.layer_perturbation = RealClaim{{std::ssize(record.steps)}, metrics.layer_perturbation};
  if (!record.steps[0].evicted.empty()) claims.evicted = claims_of(record).evicted;
  if (!record.prompt.merges.empty()) claims.merged_into = claims_of(record).merged_into;
  return claims;
}

std::vector<Policy> measured_policies() {
  return {test::kTopK, {H2o{6, 1, 3}, {}, {}, {}, {}}, {H2o{6, 1, 3}, {}, {}, {}, KeepKv{}}};
}

TEST(Agreement, JudgesEveryFigureThatIsMeasuredWithinItsOwnBound) {
  const traces::Layer layer = layer_of(2, 12);
  for (const Policy& policy : measured_policies()) {
    const LayerClaims claims = measured_claims(layer, record_of(layer, policy));
    EXPECT_TRUE(agrees(agreement(layer, implementation(policy), claims)));
    for (const auto& [tensor, member] :
         {std::pair("kept_mass", &LayerClaims::kept_mass), std::pair("bound", &LayerClaims::bound),
          std::pair("perturbation", &LayerClaims::perturbation),
          std::pair("layer_perturbation", &LayerClaims::layer_perturbation)}) {
      if (!(claims.*member)) continue;
      LayerClaims changed = claims;
      double& number = (changed.*member)->numbers.back();
      const double right = number;
      number = right + 1;
      const TensorAgreement far = find(agreement(layer, implementation(policy), changed), tensor);
      EXPECT_EQ(far.outside, 1) << tensor;
      EXPECT_EQ(far.judged, far.elements) << tensor;
      EXPECT_LT(far.worst.value().bound, 1e-8 * (1 + right)) << tensor;
      number = right + 3 * far.worst.value().bound;
      EXPECT_EQ(find(agreement(layer, implementation(policy), changed), tensor).outside, 1) << tensor;
    }
  }
}

TEST(Agreement, AcceptsFiguresOfInputsInSinglePrecision) {
  traces::Layer layer = layer_of(2, 13);
  for (double& value : layer.values.numbers())
    value *= 0x1p20;  // so that masses and quantities with units differ in size
  const traces::Layer stored = test::stored_in_single_precision(layer);
  for (const Policy& policy : measured_policies()) {
    TestedImplementation tested = implementation(policy);
    tested.storage = Dtype::f32;
    const LayerClaims claims = measured_claims(stored, record_of(stored, policy));
    EXPECT_TRUE(agrees(agreement(layer, tested, claims)));
    EXPECT_FALSE(agrees(agreement(layer, implementation(policy), claims))) << "rounding was to matter";
  }
}

TEST(Agreement, CountsTheEntriesThatHeadsShareOutOtherwise) {
  // The fourth largest weight is head 0's, by a relative margin of 1e-8 over head 1's.
  const traces::Layer layer = test::weighted_layer(5, {{9, 8, 4 * (1 + 1e-8), 1, 1}, {9, 4, 3, 3, 4}});
  TestedImplementation tested{parse_policy("h2o:window=1:recent=1+adakv:safeguard=0"), 3, 0,
                              reference::single_precision(), Dtype::f64};
  LayerClaims claims;
  claims.kept = std::vector<Positions>{{0, 1, 4}, {0, 1, 4}};
  claims.kept_offsets = Positions{0, 3, 6};
  std::vector<TensorAgreement> found = agreement(layer, tested, claims);
  EXPECT_TRUE(agrees(found));
  EXPECT_EQ(find(found, "kept").near_tie_swaps, 1);
  tested.arithmetic = reference::double_precision();
  found = agreement(layer, tested, claims);
  EXPECT_EQ(find(found, "kept").outside, 2) << "neither has its own budget";
  EXPECT_EQ(find(found, "kept_offsets").outside, 1);
  EXPECT_EQ(find(found, "kept_offsets").outside_at, Positions{1});
  tested.arithmetic.window_attention.unit = 1;  // no bound, so nothing tells
  EXPECT_EQ(find(agreement(layer, tested, claims), "kept").undecided_at, (Positions{0, 3}));
}

TEST(Agreement, SaysOnWhichKeptSetsLaterNumbersAreJudged) {
  const traces::Layer layer = layer_of(2, 6);
  LayerClaims claims = claims_of(record_of(layer, test::kTopK));
  const std::vector<Positions> own = *claims.kept;
  claims.kept->front() = test::range(test::kTokens - kEntries, test::kTokens);
  const JudgedLayer judged = judge_layer(layer, implementation(test::kTopK), claims);
  EXPECT_EQ(judged.choices.kept, *claims.kept);
  EXPECT_EQ(judged.choices.steps.size(), static_cast<size_t>(test::kSteps));
  claims.output.reset();
  claims.kept->back() = {};
  const JudgedLayer prompt = judge_layer(layer, implementation(test::kTopK), claims);
  EXPECT_EQ(prompt.choices.kept, (std::vector<Positions>{claims.kept->front(), own.back()}))
      << "where the claim is no set, the reference's";
  EXPECT_TRUE(prompt.choices.steps.empty()) << "nothing depends on them";
}

TEST(Agreement, JudgesEveryPromptQueryOnThePromptUpToItself) {
  const traces::Layer layer = layer_of(2, 11);
  const LayerShape& shape = layer.shape;
  LayerClaims claims;
  claims.prompt_output = RealClaim{{layer.window_queries, shape.query_heads, shape.head_dim}, {}, Dtype::f64};
  for (int64_t row = 0; row < layer.window_queries; ++row) {
    for (int64_t h = 0; h < shape.query_heads; ++h) {
      const int64_t g = shape.kv_head_of(h), visible = layer.prompt_tokens - layer.window_queries + row + 1;
      const Matrix output = reference::attention(layer.queries.slice(h).middle_rows(row, 1),
                                                 layer.keys.slice(g).middle_rows(0, visible),
                                                 layer.values.slice(g).middle_rows(0, visible), layer.scale)
                                .output;
      claims.prompt_output->numbers.insert(claims.prompt_output->numbers.end(), output.numbers().begin(),
                                           output.numbers().end());
    }
  }
  TestedImplementation tested = implementation(test::kTopK);
  tested.steps = 0;
  std::vector<TensorAgreement> found = agreement(layer, tested, claims);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(agrees(found));
  EXPECT_EQ(found[0].tensor, "prompt_output");
  EXPECT_EQ(found[0].judged, found[0].elements);
  const int64_t last = found[0].elements - 1;
  claims.prompt_output->numbers[last] += 1e-9;
  found = agreement(layer, tested, claims);
  EXPECT_EQ(found[0].outside, 1);
  EXPECT_EQ(found[0].worst->index,
            (std::vector<int64_t>{layer.window_queries - 1, shape.query_heads - 1, shape.head_dim - 1}));
}

TEST(Agreement, OfNoDecodeStepsIsThatOfThePrompt) {
  const traces::Layer layer = layer_of(2, 10);
  LayerClaims claims = claims_of(record_of(layer, test::kTopK, 0));
  EXPECT_FALSE(claims.output);
  claims.output = RealClaim{{0, 4, 6}, {}, Dtype::f32};
  TestedImplementation tested = implementation(test::kTopK);
  tested.steps = 0;
  const std::vector<TensorAgreement> found = agreement(layer, tested, claims);
  EXPECT_TRUE(agrees(found));
  EXPECT_EQ(find(found, "output").elements, 0);
}

}  // namespace
}  // namespace kvbound::sim::agreement_test
