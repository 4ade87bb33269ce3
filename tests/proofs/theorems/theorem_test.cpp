// The catalogue of theorems: no theorem has a counterexample, every weakened claim has one, and the ids are
// those of the written proofs.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <regex>
#include <set>

#include <gtest/gtest.h>

#include <kvbound/proofs/engine/prove.hpp>
#include <kvbound/proofs/engine/simpler.hpp>
#include <kvbound/proofs/engine/theorem.hpp>
#include <kvbound/proofs/theorems/catalogue.hpp>
#include <kvbound/proofs/theorems/scoring.hpp>

namespace kvbound::proofs::theorem_test {
namespace {

using oracle::Bounded;
using oracle::Real;

constexpr int64_t kCases = 300;
constexpr uint64_t kSeed = 1;

struct Claim {
  const Theorem* theorem;
  const Property* property;
};
std::ostream& operator<<(std::ostream& out, const Claim& claim) { return out << claim.property->id; }

std::vector<Claim> theorems() {
  std::vector<Claim> claims;
  for (const Theorem& theorem : catalogue()) claims.push_back({&theorem, &theorem.property});
  return claims;
}

std::vector<Claim> weakened_claims() {
  std::vector<Claim> claims;
  for (const Theorem& theorem : catalogue()) {
    for (const Property& property : theorem.weakened) claims.push_back({&theorem, &property});
  }
  return claims;
}

// "ckv-3.5:strict" as part of a test's name: "ckv_3_5_strict"
std::string test_name(const testing::TestParamInfo<Claim>& claim) {
  std::string name = claim.param.property->id;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

std::string description(const PropertyResult& result) {
  return result.counterexample
             ? result.counterexample->failure + ", case " + std::to_string(result.counterexample->found_at)
             : "no counterexample";
}

// ---- the theorems

class TheoremProperty : public testing::TestWithParam<Claim> {};
INSTANTIATE_TEST_SUITE_P(Catalogue, TheoremProperty, testing::ValuesIn(theorems()), test_name);

TEST_P(TheoremProperty, HasNoCounterexample) {
  const PropertyResult result = examine(*GetParam().theorem, *GetParam().property, kCases, kSeed);
  EXPECT_EQ(result.verdict, Verdict::no_counterexample)
      << name(result.verdict) << ": " << description(result);
  EXPECT_EQ(result.cases, kCases);
  EXPECT_GE(result.reference_cases, kCases / 2) << "the reference is hardly looked at";
  for (size_t i = 0; i < result.regimes().size(); ++i) {
    EXPECT_GE(result.share(result.regime_cases[i]), kRegimeShare) << name(result.regimes()[i]);
    EXPECT_LT(result.regime_cases[i], kCases) << "nothing but " << name(result.regimes()[i]);
  }
}

// Instances reach every inequality of the catalogue, or nearly so: instances far from
// equality would prove little.
TEST_P(TheoremProperty, IsTight) {
  const std::map<std::string, double> least{
      {"ckv-3.3", 0.99},        // reached by opposed values
      {"ckv-layer", 0.99},      // reached by opposed values in every head
      {"ckv-3.5", 1},           // reached if stage two is empty
      {"ckv-epsilon", 0.4},     // 1 in the limit only
      {"ckv-e.1", 1},           // reached if stage two is empty
      {"ckv-window", 0.99},     // reached by opposed values if stage one is all that is kept
      {"ckv-theta-sweep", 1},   // reached where a rival is chosen
      {"theta-all", 0.999},     // reached by opposed values
      {"obc-key", 0.99},        // limit A -> 0 or 1 for h = 1/2; the bound has 11/8, not 1.3667
      {"obc-joint", 0.9},       // the remainders of key and value have the same direction
      {"obc-set", 1},           // reached by one entry
      {"obc-gqa", 0.99},        // reached by identical heads
      {"obc-special", 1},       // reached by identical queries
      {"kkv-2", 0.999},         // reached by equal logits and votes of 1
      {"kkv-kl", 0.999},        // limit: two members of equal votes and nearly equal scores
      {"kkv-3-prime", 0.999},   // the same limit
      {"kkv-5", 0.23},          // 1/4 in the limit, as kkv-5-sharp shows
      {"kkv-5-prime", 0.95},    // limit: no attention on merged entries, epsilon -> 0
      {"kkv-5-sharp", 0.99},    // reached by a cluster with one common error
      {"kkv-5-free", 0.999},    // reached by values of 1 where attention grows, 0 where it shrinks
      {"kkv-5-joint", 0.999},   // reached by epsilon = 0
      {"kkv-sequence", 0.999},  // reached by one merge
  };
  const Theorem& theorem = *GetParam().theorem;
  constexpr int64_t kManyCases = 2000;  // the tightest instances are rare
  const PropertyResult result = examine(theorem, theorem.property, kManyCases, kSeed);
  ASSERT_EQ(result.tightest.has_value(), !theorem.ratio.empty());
  ASSERT_EQ(least.contains(theorem.id), !theorem.ratio.empty()) << "how tight must it be?";
  if (!result.tightest) return;
  EXPECT_GE(*result.tightest, least.at(theorem.id)) << theorem.ratio;
  EXPECT_LE(*result.tightest, 1 + 1e-12) << theorem.ratio << ", rounded to double precision";
}

// A kept mass of e^-720, whose inverse exceeds a double, multiplied by norms of 0.
TEST(StableForm, HoldsWhereTheInverseMassExceedsADouble) {
  Instance instance;
  instance.logits = Matrix(1, 2);
  instance.logits(0, 1) = -720;
  instance.values = Matrix(2, 1);
  instance.values(0, 0) = 1;
  instance.output_projection = Matrix(1, 1);
  instance.output_projection(0, 0) = 1;
  instance.stage_one = instance.kept = {1};
  const auto theorem = std::ranges::find(catalogue(), "ckv-stable", &Theorem::id);
  const Outcome outcome = check(theorem->property, instance);
  EXPECT_TRUE(outcome.holds()) << outcome.failure();
}

// One entry's weight rounds to 1 in double precision: without that entry the output is
// the other entry's value.
TEST(ExactRemoval, KeepsItsDigitsHoweverMuchTheEntryHolds) {
  for (const double gap : {38, 800}) {
    Instance instance;
    instance.logits = Matrix(1, 2);
    instance.logits(0, 0) = gap;
    instance.values = Matrix(2, 2);
    instance.values(0, 0) = 3;
    instance.values(0, 1) = 1.5;
    instance.output_projection = Matrix(2, 1);
    instance.stage_one = instance.kept = {1};
    for (const char* id : {"obc-exact", "obc-set", "obc-shift", "obc-zeroing"}) {
      const Outcome outcome = check(std::ranges::find(catalogue(), id, &Theorem::id)->property, instance);
      EXPECT_TRUE(outcome.holds()) << id << ", gap " << gap << ": " << outcome.failure();
    }
    const auto scored = computed_scores(reference::Change::exact, instance, 0, Space::head);
    EXPECT_NEAR(scored.scores(0, 0), 11.25, 1e-13) << gap;
    EXPECT_EQ(scored.weights(0, 0), 1) << "whose rest is 0 in double precision";
  }
}

// Both 1 - A and exp(-LSE) underflow.
TEST(Zeroing, IsDefinedWhereOneEntryHoldsAllAttention) {
  for (const int64_t entries : {1, 2}) {
    Instance instance;
    instance.logits = Matrix(1, entries);
    instance.logits(0, 0) = 1600;
    instance.values = Matrix(entries, 1);
    instance.values(0, 0) = 2;
    if (entries > 1) instance.values(1, 0) = 1;
    instance.output_projection = Matrix(1, 1);
    instance.stage_one = instance.kept = {0};
    const Outcome outcome =
        check(std::ranges::find(catalogue(), "obc-zeroing", &Theorem::id)->property, instance);
    EXPECT_TRUE(outcome.holds()) << outcome.failure();
    const auto scored = computed_scores(reference::Change::slot, instance, 0, Space::head);
    EXPECT_EQ(scored.scores(0, 0), entries == 1 ? 4 : 2.25) << "o' is 0, or half the other's value";
  }
}

// ---- the weakened claims

class WeakenedClaim : public testing::TestWithParam<Claim> {};
INSTANTIATE_TEST_SUITE_P(Catalogue, WeakenedClaim, testing::ValuesIn(weakened_claims()), test_name);

TEST_P(WeakenedClaim, HasASimplestCounterexample) {
  const Property& property = *GetParam().property;
  const PropertyResult result = examine(*GetParam().theorem, property, kCases, kSeed);
  ASSERT_EQ(result.verdict, Verdict::counterexample) << name(result.verdict);
  const Instance& instance = result.counterexample->instance;
  EXPECT_NO_THROW(require_valid(instance));
  const Outcome outcome = check(property, instance);
  ASSERT_FALSE(outcome.holds());
  EXPECT_EQ(outcome.failure(), result.counterexample->failure);
  for (const Instance& next : simpler(instance)) EXPECT_TRUE(check(property, next).holds());
  EXPECT_TRUE(check(GetParam().theorem->property, instance).holds()) << "it refutes the theorem as well";
}

// Of the whole cache merged into its last entry nothing is outside: its attention is 1 before and after.
TEST(AttentionSag, HoldsWhereAllEntriesMergeIntoALaterOne) {
  Instance instance;
  instance.logits = Matrix(1, 3);
  instance.logits(0, 1) = 1;
  instance.values = Matrix(3, 1);
  instance.output_projection = Matrix(1, 1);
  instance.votes = {1, 1, 1};
  instance.query_vectors = Matrix(1, 1);
  instance.query_vectors(0, 0) = 1;
  const auto theorem = std::ranges::find(catalogue(), "kkv-2", &Theorem::id);
  const auto all_votes = std::ranges::find(theorem->weakened, "kkv-2:all-votes", &Property::id);
  for (const int64_t last : {1, 2}) {
    instance.stage_one = instance.kept = {last};
    require_valid(instance);
    EXPECT_TRUE(check(*all_votes, instance).holds()) << last;
    EXPECT_TRUE(check(theorem->property, instance).holds()) << last;
  }
  instance.stage_one = instance.kept = {1, 2};  // 0 merges into 1, and 2 is outside
  EXPECT_TRUE(check(*all_votes, instance).fails());
}

// Scores of the cluster {1, 2} whose mean is 2^-42: z*/m divides by what is left of them. The mean key is
// parallel to the query, so that ZIP and the minimum norm move it equally far.
TEST(MinimumNorm, MovesTheKeyAsFarAsZipUpToRounding) {
  Instance instance;
  instance.logits = Matrix(1, 3);
  instance.logits(0, 1) = 0.24972838870326086;
  instance.logits(0, 2) = -0.5627716112967391;
  instance.values = Matrix(3, 1);
  instance.output_projection = Matrix(1, 1);
  instance.stage_one = {0};
  instance.kept = {0, 1};
  instance.votes = {1, 1, 1};
  instance.query_vectors = Matrix(1, 1);
  instance.query_vectors(0, 0) = 1;
  const Outcome outcome =
      check(std::ranges::find(catalogue(), "kkv-3-prime", &Theorem::id)->property, instance);
  EXPECT_TRUE(outcome.holds()) << outcome.failure();
}

// Large instances are drawn for every theorem whose checks do not look at all selections.
TEST(Catalogue, DrawsLongSequencesAndWideGroups) {
  const std::set<std::string> of_every_selection{"ckv-3.5",    "ckv-epsilon",        "ckv-e.1",
                                                 "ckv-window", "ckv-adaptive-alpha", "ckv-theta-sweep"};
  for (const Theorem& theorem : catalogue()) {
    EXPECT_EQ(theorem.sizes.long_tokens, of_every_selection.contains(theorem.id) ? 0 : kLongTokens)
        << theorem.id;
    EXPECT_EQ(theorem.sizes.wide_group, theorem.sizes.query_heads > 1 ? kWideGroup : 0) << theorem.id;
  }
}

// ---- ids

// The text of each page of written proofs that the catalogue names.
std::map<std::string, std::string> written_proofs() {
  std::map<std::string, std::string> pages;
  for (const Theorem& theorem : catalogue()) {
    std::ifstream file("proofs/" + theorem.page);
    pages[theorem.page] = {std::istreambuf_iterator<char>(file), {}};
  }
  return pages;
}

// The pattern's first capture group, for every match.
std::vector<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
    found.push_back((*match)[1]);
  return found;
}

std::set<std::string> as_set(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

std::vector<std::string> ids(const std::vector<Claim>& claims) {
  std::vector<std::string> result;
  for (const Claim& claim : claims) result.push_back(claim.property->id);
  return result;
}

TEST(Catalogue, HasUniqueIds) {
  for (const auto& all : {ids(theorems()), ids(weakened_claims())}) {
    EXPECT_FALSE(all.empty());
    EXPECT_EQ(as_set(all).size(), all.size());
  }
}

TEST(Catalogue, NamesPropertiesAfterTheirTheorems) {
  for (const Theorem& theorem : catalogue()) {
    EXPECT_EQ(theorem.property.id, theorem.id);
    EXPECT_FALSE(theorem.weakened.empty()) << theorem.id << " has no claim that must fail";
    for (const Property& property : theorem.weakened)
      EXPECT_TRUE(property.id.starts_with(theorem.id + ":")) << property.id;
  }
}

TEST(Catalogue, SaysWhatItClaims) {
  for (const Theorem& theorem : catalogue()) {
    for (const std::string& text :
         {theorem.title, theorem.statement, theorem.hypotheses, theorem.source, theorem.property.claim})
      EXPECT_FALSE(text.empty()) << theorem.id;
    for (const Property& property : theorem.weakened) EXPECT_FALSE(property.claim.empty()) << property.id;
  }
}

TEST(Catalogue, HasThePropertiesOfTheWrittenProofsAndNoOthers) {
  std::string text;
  for (const auto& [page, written] : written_proofs()) {
    ASSERT_FALSE(written.empty()) << "proofs/" << page << " is missing";
    for (const Theorem& theorem : catalogue()) {
      EXPECT_EQ(written.find("<a id=\"" + theorem.id + "\"></a>") != std::string::npos, theorem.page == page)
          << theorem.proof();
    }
    text += written;
  }
  const auto sections = matches(text, R"re(<a id="([^"]+)"></a>)re");
  EXPECT_EQ(sections.size(), as_set(sections).size()) << "two sections with one id";
  EXPECT_EQ(as_set(sections), as_set(ids(theorems())));
  EXPECT_EQ(as_set(matches(text, R"re(\n## ((?:ckv|obc|kkv|theta)-[^\s:]+): )re")), as_set(sections))
      << "headings";
  EXPECT_EQ(as_set(matches(text, R"re(\n\| \[((?:ckv|obc|kkv|theta)-[^\]]+)\]\(#)re")), as_set(sections))
      << "the overview";
  const auto counterexamples = matches(text, R"re(\n\*\*Counterexample `([^`]+)`\.\*\*)re");
  EXPECT_EQ(counterexamples.size(), as_set(counterexamples).size()) << "two counterexamples with one id";
  EXPECT_EQ(as_set(counterexamples), as_set(ids(weakened_claims())));
  EXPECT_EQ(as_set(matches(text, R"re(`((?:ckv|obc|kkv|theta)-[^`\s:]+:[^`\s]+)`)re")),
            as_set(counterexamples))
      << "mentions";
}

// ---- evaluating a property on an instance

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const Real exact_nan = std::numeric_limits<Real>::quiet_NaN();

template <class... Arguments>
bool holds(void (Outcome::*claim)(const std::string&, Arguments...),
           const std::type_identity_t<std::decay_t<Arguments>>&... arguments) {
  Outcome outcome;
  (outcome.*claim)("claim", arguments...);
  return outcome.holds();
}

TEST(Outcome, HoldsUntilAClaimFails) {
  Outcome outcome;
  EXPECT_TRUE(outcome.holds());
  outcome.require("one", true);
  outcome.at_most("two", 1, 2, 1);
  outcome.below("three", 1, 2, 1);
  outcome.equal("four", 1, 1, 1);
  EXPECT_TRUE(outcome.holds());
}

TEST(Outcome, ComparesAsItsClaimsSay) {
  EXPECT_TRUE(holds(&Outcome::at_most, 1, 1, 1));
  EXPECT_FALSE(holds(&Outcome::at_most, 2, 1, 1));
  EXPECT_TRUE(holds(&Outcome::below, 1, 2, 1));
  EXPECT_FALSE(holds(&Outcome::below, 1, 1, 1));
  EXPECT_FALSE(holds(&Outcome::below, 2, 1, 1));
  EXPECT_FALSE(holds(&Outcome::equal, 1, 2, 1));
  EXPECT_FALSE(holds(&Outcome::equal, 2, 1, 1));
}

TEST(Outcome, FailsOnNaN) {
  for (const auto claim : {&Outcome::at_most, &Outcome::below, &Outcome::equal}) {
    EXPECT_FALSE(holds(claim, exact_nan, 1, 1));
    EXPECT_FALSE(holds(claim, 1, exact_nan, 1));
    EXPECT_FALSE(holds(claim, 1, 2, exact_nan));
    EXPECT_FALSE(holds(claim, exact_nan, exact_nan, exact_nan));
  }
  EXPECT_FALSE(holds(&Outcome::reference_within, kNan, Bounded(1, 1)));
  EXPECT_FALSE(holds(&Outcome::reference_within, 1, Bounded(exact_nan, 1)));
  EXPECT_FALSE(holds(&Outcome::reference_within, 1, Bounded(1, exact_nan)));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(
      holds(&Outcome::reference_within, infinity, Bounded(1, std::numeric_limits<Real>::infinity())));
}

TEST(Outcome, IsUndecidedWhereASideOrItsTermsAreNaN) {
  for (const auto claim : {&Outcome::at_most, &Outcome::below, &Outcome::equal}) {
    for (int which = 0; which < 3; ++which) {
      const Real one = 1, left = which == 0 ? exact_nan : one, right = which == 1 ? exact_nan : one;
      Outcome outcome;
      (outcome.*claim)("claim", left, right, which == 2 ? exact_nan : one);
      EXPECT_TRUE(outcome.undecided()) << which;
      EXPECT_FALSE(outcome.fails()) << which;
    }
  }
}

TEST(Outcome, FailsWhateverIsUndecidedAfterwards) {
  Outcome outcome;
  outcome.at_most("claim", 2, 1, 1);
  outcome.undecide("the rest could not be evaluated");
  EXPECT_TRUE(outcome.fails());
  EXPECT_FALSE(outcome.undecided());
  EXPECT_EQ(outcome.failure(), "claim: 2 > 1");
}

TEST(Outcome, ForgivesTheRoundingOf50DigitsAndNothingElse) {
  const Real one = 1, rounding("1e-46"), difference("1e-30");
  EXPECT_TRUE(holds(&Outcome::at_most, one + rounding, one, 1));
  EXPECT_TRUE(holds(&Outcome::equal, one + rounding, one, 1));
  EXPECT_FALSE(holds(&Outcome::below, one - rounding, one, 1)) << "strictly is more than rounding";
  for (const Real& size : {Real(1), Real("1e-200"), Real("1e200")}) {
    const Real more = size * (one + difference);
    EXPECT_FALSE(holds(&Outcome::at_most, more, size, size));
    EXPECT_FALSE(holds(&Outcome::equal, more, size, size));
    EXPECT_FALSE(holds(&Outcome::equal, size, more, size));
    EXPECT_TRUE(holds(&Outcome::below, size, more, size));
  }
}

TEST(Outcome, AllowsTheReferenceItsErrorBoundOnly) {
  EXPECT_TRUE(holds(&Outcome::reference_within, 1, Bounded(1, 0)));
  EXPECT_TRUE(holds(&Outcome::reference_within, 1.5, Bounded(1, 0.5)));
  EXPECT_TRUE(holds(&Outcome::reference_within, 0.5, Bounded(1, 0.5)));
  EXPECT_FALSE(holds(&Outcome::reference_within, 1.75, Bounded(1, 0.5)));
  EXPECT_FALSE(holds(&Outcome::reference_within, 0.25, Bounded(1, 0.5)));
}

TEST(Outcome, TellsTheFirstFailure) {
  Outcome outcome;
  outcome.at_most("first", 2, 1, 1);
  outcome.equal("second", 1, 2, 1);
  outcome.reference_holds("third", false);
  outcome.require("fourth", true);
  EXPECT_EQ(outcome.failure(), "first: 2 > 1");
}

TEST(Outcome, SaysWhatFailedAndBothSides) {
  const auto failure = [](auto claim, auto... arguments) {
    Outcome outcome;
    (outcome.*claim)("claim", arguments...);
    return outcome.failure();
  };
  EXPECT_EQ(failure(&Outcome::below, Real(3), Real(1.5), Real(1)), "claim: 3 >= 1.5");
  EXPECT_EQ(failure(&Outcome::equal, Real(3), Real(1.5), Real(1)), "claim: 3 is not 1.5");
  EXPECT_EQ(failure(&Outcome::reference_within, 3.0, Bounded(1.5, 0.25)),
            "the reference: claim 3 is within 0.25 of 1.5");
  EXPECT_EQ(failure(&Outcome::reference_holds, false), "the reference: claim");
  EXPECT_EQ(failure(&Outcome::require, false), "claim");
}

TEST(Outcome, KnowsWhetherTheReferenceWasLookedAt) {
  Outcome outcome;
  outcome.at_most("claim", 1, 2, 1);
  EXPECT_FALSE(outcome.reference_held());
  outcome.reference_within("quantity", 1, 1.0);
  EXPECT_TRUE(outcome.reference_held());
  Outcome failed;
  failed.reference_holds("something", false);
  EXPECT_TRUE(failed.reference_held()) << "with whatever result";
}

TEST(Outcome, KeepsTheLargestRatio) {
  Outcome outcome;
  EXPECT_FALSE(outcome.ratio());
  outcome.ratio(0, 0);
  outcome.ratio(1, 0);
  EXPECT_FALSE(outcome.ratio()) << "over 0 there is none";
  outcome.ratio(Real("1e-50"), Real("1e-51"), 1);
  EXPECT_FALSE(outcome.ratio()) << "of what the rounding of 50 digits leaves there is none";
  outcome.ratio(1, 4);
  outcome.ratio(1, 2);
  outcome.ratio(1, 8);
  EXPECT_EQ(outcome.ratio(), 0.5);
}

}  // namespace
}  // namespace kvbound::proofs::theorem_test
