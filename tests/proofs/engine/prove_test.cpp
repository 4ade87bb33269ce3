// The search for counterexamples, on properties whose simplest counterexample is known, and on the catalogue.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

#include <kvbound/proofs/engine/prove.hpp>
#include <kvbound/proofs/engine/search.hpp>
#include <kvbound/proofs/theorems/catalogue.hpp>

#include "support/threads.hpp"

namespace kvbound::proofs::prove_test {
namespace {

using oracle::Real;
using Positions = std::vector<int64_t>;

constexpr uint64_t kSeed = 1;
constexpr Sizes kSmall{.tokens = 6, .head_dim = 2, .model_dim = 2};

Theorem theorem_of(Outcome (*check)(const Instance&), std::vector<Property> weakened = {}) {
  Theorem theorem;
  theorem.id = "made-up";
  theorem.sizes = kSmall;
  theorem.property = {"made-up", "a claim", check};
  theorem.weakened = std::move(weakened);
  return theorem;
}

Outcome always(const Instance&) { return {}; }

Outcome never(const Instance&) {
  Outcome outcome;
  outcome.require("nothing is true", false);
  return outcome;
}

Outcome one_is_kept(const Instance& instance) {
  Outcome outcome;
  outcome.require("at most one entry is kept", instance.kept.size() < 2);
  return outcome;
}

Outcome values_below_2(const Instance& instance) {
  Outcome outcome;
  for (const double value : instance.values.numbers())
    outcome.at_most("|value|", Real(std::abs(value)), 1.75, 1);
  return outcome;
}

Outcome thrown(const Instance& instance) {
  if (instance.tokens() > 1) throw std::runtime_error("the reference refuses");
  return {};
}

const Theorem& ckv_3_3() { return *std::ranges::find(catalogue(), "ckv-3.3", &Theorem::id); }

testing::AssertionResult are_zeros(const Matrix& numbers, int64_t rows, int64_t cols) {
  if (numbers.rows() != rows || numbers.cols() != cols)
    return testing::AssertionFailure() << "[" << numbers.rows() << ", " << numbers.cols() << "]";
  if (std::ranges::any_of(numbers.numbers(), [](double x) { return x != 0; }))
    return testing::AssertionFailure() << "some number is not 0";
  return testing::AssertionSuccess();
}

void expect_same(const PropertyResult& one, const PropertyResult& other) {
  EXPECT_EQ(one.cases, other.cases);
  EXPECT_EQ(one.regime_cases, other.regime_cases);
  EXPECT_EQ(one.reference_cases, other.reference_cases);
  EXPECT_EQ(one.tightest, other.tightest);
  EXPECT_EQ(one.verdict, other.verdict);
  ASSERT_EQ(one.counterexample.has_value(), other.counterexample.has_value());
  if (!one.counterexample) return;
  EXPECT_EQ(one.counterexample->failure, other.counterexample->failure);
  EXPECT_EQ(one.counterexample->found_at, other.counterexample->found_at);
  EXPECT_EQ(one.counterexample->shrinks, other.counterexample->shrinks);
  EXPECT_TRUE(std::ranges::equal(one.counterexample->instance.logits.numbers(),
                                 other.counterexample->instance.logits.numbers()));
}

// ---- examine

TEST(Examine, FindsAndShrinksACounterexample) {
  const Theorem theorem = theorem_of(one_is_kept);
  const PropertyResult result = examine(theorem, theorem.property, 200, kSeed);
  ASSERT_EQ(result.verdict, Verdict::violated);
  const Instance& instance = result.counterexample->instance;
  EXPECT_TRUE(are_zeros(instance.logits, 1, 2));
  EXPECT_TRUE(are_zeros(instance.values, 2, 1));
  EXPECT_TRUE(are_zeros(instance.output_projection, 1, 1));
  EXPECT_EQ(instance.kept, (Positions{0, 1}));
  EXPECT_EQ(instance.stage_one.size(), 1u);
  EXPECT_EQ(instance.epsilon, 0);
  EXPECT_EQ(result.counterexample->failure, "at most one entry is kept");
  EXPECT_GT(result.counterexample->shrinks, 0);
}

TEST(Examine, ShrinksNumbersToTheRoundestThatFail) {
  const Theorem theorem = theorem_of(values_below_2);
  const PropertyResult result = examine(theorem, theorem.property, 200, kSeed);
  ASSERT_EQ(result.verdict, Verdict::violated);
  const Instance& instance = result.counterexample->instance;
  EXPECT_EQ(instance.tokens(), 1);
  ASSERT_EQ(instance.values.numbers().size(), 1u);
  EXPECT_EQ(instance.values(0, 0), 2);
  EXPECT_TRUE(are_zeros(instance.output_projection, 1, 1));
  EXPECT_EQ(result.counterexample->failure, "|value|: 2 > 1.75") << "of the shrunk instance";
}

TEST(Examine, TellsTheCaseThatFailedFirst) {
  const Theorem none_holds = theorem_of(never);
  const PropertyResult first = examine(none_holds, none_holds.property, 200, kSeed);
  EXPECT_EQ(first.counterexample->found_at, 1);
  EXPECT_EQ(first.cases, 1);
  const Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    outcome.require("not all of 6 tokens are kept", instance.kept.size() < 6);
    return outcome;
  });
  const PropertyResult result = examine(theorem, theorem.property, 1000, kSeed);
  ASSERT_TRUE(result.counterexample);
  const int64_t found_at = result.counterexample->found_at;
  ASSERT_GT(found_at, 64) << "another seed: this one says nothing of what comes after the first batch";
  EXPECT_EQ(result.cases, found_at);
  EXPECT_FALSE(examine(theorem, theorem.property, found_at - 1, kSeed).counterexample) << "an earlier one";
  EXPECT_EQ(examine(theorem, theorem.property, found_at, kSeed).counterexample->found_at, found_at);
}

// An evaluation that throws neither refutes a theorem nor serves as the counterexample
// that a weakened claim needs.
TEST(Examine, IsUndecidedWhereEvaluationThrows) {
  const Theorem theorem = theorem_of(thrown, {{"made-up:throws", "throws", thrown}});
  for (const Property& property : {theorem.property, theorem.weakened.front()}) {
    const PropertyResult result = examine(theorem, property, 100, kSeed);
    ASSERT_EQ(result.verdict, Verdict::undecided);
    EXPECT_TRUE(result.counterexample->undecided);
    EXPECT_EQ(result.counterexample->failure, "it could not be evaluated: the reference refuses");
    EXPECT_EQ(result.counterexample->instance.tokens(), 2);
  }
}

// Instances with an epsilon of 0, which throw, are simpler than those that fail, but show a different fault.
TEST(Examine, DoesNotShrinkAFailureToWhatThrows) {
  const Theorem theorem = theorem_of([](const Instance& instance) {
    if (instance.epsilon == 0) throw std::runtime_error("epsilon is 0");
    Outcome outcome;
    outcome.require("one token", instance.tokens() < 2);
    return outcome;
  });
  int64_t violated = 0;
  for (uint64_t seed = 1; seed < 20; ++seed) {
    const PropertyResult result = examine(theorem, theorem.property, 100, seed);
    ASSERT_TRUE(result.counterexample);
    const bool is_violated = result.verdict == Verdict::violated;
    EXPECT_EQ(result.counterexample->undecided, !is_violated);
    EXPECT_EQ(result.counterexample->instance.epsilon > 0, is_violated);
    EXPECT_EQ(result.counterexample->instance.tokens(), is_violated ? 2 : 1);
    violated += is_violated;
  }
  EXPECT_GT(violated, 0);
}

TEST(Examine, MissesTheCounterexampleOfAWeakenedClaimThatIsTrue) {
  const Theorem theorem = theorem_of(always, {{"made-up:true", "true all the same", always}});
  const PropertyResult result = examine(theorem, theorem.weakened.front(), 70, kSeed);
  EXPECT_EQ(result.verdict, Verdict::none_found);
  EXPECT_TRUE(result.weakened());
  EXPECT_EQ(result.cases, 20000);
  EXPECT_EQ(weakened_cases(70), 20000);
  EXPECT_EQ(weakened_cases(3000), 30000);
}

TEST(Examine, EndsTheSearchForAWeakenedClaimWithItsFirstCounterexample) {
  const Theorem theorem = theorem_of(always, {{"made-up:false", "false", one_is_kept}});
  const PropertyResult result = examine(theorem, theorem.weakened.front(), 1000, kSeed);
  EXPECT_EQ(result.verdict, Verdict::counterexample);
  EXPECT_EQ(result.cases, result.counterexample->found_at);
  EXPECT_LT(result.cases, 20);
}

TEST(Examine, IsNotContentWithCasesOfOneKind) {
  Theorem theorem = theorem_of(always);
  EXPECT_EQ(examine(theorem, theorem.property, 500, kSeed).verdict, Verdict::no_counterexample);
  theorem.sizes = {.tokens = 1};  // with one token no entry can be evicted or tied
  const PropertyResult result = examine(theorem, theorem.property, 500, kSeed);
  EXPECT_EQ(result.verdict, Verdict::regimes_too_rare);
  EXPECT_FALSE(result.counterexample);
}

TEST(Examine, AsksForTheShareOfCasesThatItSays) {
  PropertyResult result;
  result.cases = 200;
  EXPECT_EQ(result.share(10), kRegimeShare);
  EXPECT_LT(result.share(9), kRegimeShare);
}

TEST(Examine, CountsCases) {
  Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    if (instance.tokens() == 1) outcome.reference_holds("something", true);
    return outcome;
  });
  theorem.sizes.tokens = 1;
  for (const int64_t cases : {1, 63, 64, 65, 200}) {
    const PropertyResult result = examine(theorem, theorem.property, cases, kSeed);
    EXPECT_EQ(result.cases, cases);
    EXPECT_EQ(result.reference_cases, cases);
    EXPECT_EQ(result.regime_cases, (std::vector<int64_t>{0, 0, 0, 0, cases, cases}))
        << "one token: stage one is all that is kept, and one entry is";
    EXPECT_FALSE(result.tightest);
  }
}

TEST(Examine, CountsOnlyCasesInWhichTheReferenceWasLookedAt) {
  const Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    if (shows(instance, Regime::single_kept)) outcome.reference_holds("something", true);
    return outcome;
  });
  const PropertyResult result = examine(theorem, theorem.property, 200, kSeed);
  EXPECT_EQ(result.reference_cases, result.regime_cases.back());
  EXPECT_GT(result.reference_cases, 0);
  EXPECT_LT(result.reference_cases, 200);
}

TEST(Examine, KeepsTheLargestRatioOfAllCases) {
  const Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    outcome.ratio(instance.tokens(), 1);
    return outcome;
  });
  EXPECT_EQ(examine(theorem, theorem.property, 200, kSeed).tightest, kSmall.tokens);
}

TEST(Examine, ReportsItsProgress) {
  const Theorem theorem = theorem_of(always);
  std::vector<int64_t> done;
  examine(theorem, theorem.property, 200, kSeed, [&](int64_t cases) { done.push_back(cases); });
  EXPECT_TRUE(std::ranges::is_sorted(done));
  ASSERT_FALSE(done.empty());
  EXPECT_EQ(done.back(), 200);
}

TEST(Examine, DependsOnTheSeedAndThePropertysId) {
  // The ratio is a fingerprint of the cases drawn.
  const Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    Real sum = 0;
    for (const double logit : instance.logits.numbers()) sum += 20000 + Real(logit);
    outcome.ratio(sum, 1);
    return outcome;
  });
  Theorem renamed = theorem;
  renamed.property.id = "made-otherwise";
  const auto drawn = [](const Theorem& some, uint64_t seed) {
    return examine(some, some.property, 50, seed).tightest;
  };
  EXPECT_EQ(drawn(theorem, 1), drawn(theorem, 1));
  EXPECT_NE(drawn(theorem, 1), drawn(theorem, 2));
  EXPECT_NE(drawn(theorem, 1), drawn(renamed, 1));
}

TEST(Examine, DependsNeitherOnThreadsNorOnWhatElseIsProved) {
  const Theorem violated = theorem_of(values_below_2);
  const Property& weakened = ckv_3_3().weakened.front();
  const auto examined = [&](bool others) {
    if (others) examine(violated, violated.property, 10, kSeed + 1);
    std::vector<PropertyResult> results;
    results.push_back(examine(ckv_3_3(), ckv_3_3().property, 130, kSeed));
    results.push_back(examine(ckv_3_3(), weakened, 130, kSeed));
    results.push_back(examine(violated, violated.property, 130, kSeed));
    return results;
  };
  const auto one = test::with_threads(1, [&] { return examined(false); });
  const auto four = test::with_threads(4, [&] { return examined(true); });
  for (size_t i = 0; i < one.size(); ++i) expect_same(one[i], four[i]);
  EXPECT_EQ(one[0].verdict, Verdict::no_counterexample);
  EXPECT_TRUE(one[1].counterexample && one[2].counterexample);
}

TEST(Verdict, HasANameForEach) {
  EXPECT_STREQ(name(Verdict::no_counterexample), "no-counterexample");
  EXPECT_STREQ(name(Verdict::violated), "violated");
  EXPECT_STREQ(name(Verdict::counterexample), "counterexample-found");
  EXPECT_STREQ(name(Verdict::none_found), "no-counterexample-found-where-one-must-exist");
  EXPECT_STREQ(name(Verdict::regimes_too_rare), "regimes-too-rare");
}

// ---- search

TEST(SearchTightest, ReachesTheEqualityOfTheorem33) {
  constexpr double kReached = 0.99, kLongest = 32;
  Tightest found;
  // How many instances a second suffices for depends on the machine and its load.
  for (double seconds = 1; seconds <= kLongest && !(found.ratio >= kReached); seconds *= 2) {
    found = search_tightest(ckv_3_3(), seconds, kSeed);
  }
  EXPECT_FALSE(found.failure) << *found.failure;
  EXPECT_GE(found.ratio, kReached);
  EXPECT_GT(found.evaluations, 1);
  EXPECT_NO_THROW(require_valid(found.instance));
  EXPECT_EQ(check(ckv_3_3().property, found.instance).ratio(), found.ratio);
}

TEST(SearchTightest, ClimbsBeyondWhatIsDrawn) {
  // Drawn values are at most 4 in magnitude: only climbing reaches 100.
  const Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    outcome.ratio(std::abs(instance.values(0, 0)), 1);
    outcome.require("reached", std::abs(instance.values(0, 0)) < 100);
    return outcome;
  });
  const Tightest found = search_tightest(theorem, 60, kSeed);
  EXPECT_TRUE(found.failure);
  EXPECT_GE(found.ratio, 100);
}

TEST(SearchTightest, LooksAtOneInstanceAtLeast) {
  const Theorem theorem = theorem_of(always);
  const Tightest found = search_tightest(theorem, 0, kSeed);
  EXPECT_EQ(found.evaluations, 1);
  EXPECT_NO_THROW(require_valid(found.instance));
}

TEST(SearchTightest, LooksAtValidInstancesOnly) {
  Theorem theorem = theorem_of([](const Instance& instance) {
    require_valid(instance);
    Outcome outcome;
    outcome.ratio(std::abs(instance.logits(0, 0)), 1 + std::abs(instance.values(0, 0)));
    return outcome;
  });
  for (const Sizes& sizes : {kSmall, kMergingSizes}) {
    theorem.sizes = sizes;
    const Tightest found = search_tightest(theorem, 0.2, kSeed);
    EXPECT_FALSE(found.failure) << *found.failure;
  }
}

// The search returns the failing instance even if the ratio of an earlier instance is larger.
TEST(SearchTightest, EndsWithTheInstanceThatFails) {
  const Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    outcome.ratio(instance.kept.size(), 1);
    outcome.require("stage two is not empty", instance.stage_two_count() > 0 || instance.tokens() < 5);
    return outcome;
  });
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Tightest found = search_tightest(theorem, 60, seed);
    ASSERT_TRUE(found.failure);
    EXPECT_EQ(*found.failure, "stage two is not empty");
    EXPECT_FALSE(check(theorem.property, found.instance).holds()) << "seed " << seed;
    EXPECT_EQ(check(theorem.property, found.instance).ratio(), found.ratio);
  }
}

TEST(SearchTightest, IsTheSameForTheSameSeed) {
  const Theorem theorem = theorem_of([](const Instance& instance) {
    Outcome outcome;
    outcome.ratio(std::abs(instance.values(0, 0)), 1);
    outcome.require("reached", std::abs(instance.values(0, 0)) < 100);
    return outcome;
  });
  const Tightest one = search_tightest(theorem, 60, 7), other = search_tightest(theorem, 60, 7);
  EXPECT_EQ(one.evaluations, other.evaluations);
  EXPECT_EQ(one.ratio, other.ratio);
}

TEST(SearchTightest, ReportsItsProgress) {
  double last = -1;
  int64_t calls = 0;
  const Tightest found = search_tightest(ckv_3_3(), 0.1, kSeed, [&](double, double ratio) {
    EXPECT_GE(ratio, last);
    last = ratio;
    ++calls;
  });
  EXPECT_EQ(last, found.ratio);
  EXPECT_EQ(calls, found.evaluations);
}

}  // namespace
}  // namespace kvbound::proofs::prove_test
