// The perturbation and its bounds against the definitions in 50 digits, in every regime of attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/critical_kv.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "support/oracle.hpp"
#include "support/random_layer.hpp"

namespace kvbound::reference {
namespace {

using oracle::Bounded;
using oracle::Real;
using oracle::Row;
using oracle::within;
using test::Eviction;
using test::matrix;
using test::Regime;
using Positions = std::vector<int64_t>;
using Numbers = std::vector<double>;

// Agrees element by element; where every element is below the range of doubles nothing can be refused as
// vacuous.
void expect_within(VectorView actual, const Row& expected) {
  const auto representable = [](const Bounded& e) { return abs(e.value) > Real("1e-300"); };
  if (std::ranges::any_of(expected, representable)) {
    EXPECT_TRUE(oracle::all_within(actual, expected));
    return;
  }
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(within(actual[i], expected[i])) << i;
}

// Two exact evaluations of the same quantity, whose terms add up to `terms` without their signs.
void expect_equal(const Real& one, const Real& other, const Real& terms) {
  EXPECT_LE(abs(one - other), oracle::oracle_precision() * terms);
}

Row without_bounds(const Row& row) {
  Row result;
  for (const Bounded& entry : row) result.emplace_back(entry.value, Real(0));
  return result;
}

Real total(const Row& row) {
  Real result = 0;
  for (const Bounded& entry : row) result += entry.value;
  return result;
}

bool resolved(const Bounded& mass) { return mass.value > 4 * mass.bound; }

// One random eviction: its exact numbers, and those of the reference.
struct Case {
  Case(Regime regime, uint64_t seed)
      : description(name(regime) + ", seed " + std::to_string(seed)),
        given(random_eviction(regime, seed)),
        logits(oracle::exactly(given.logits)),
        weights(oracle::softmax(logits)),
        exact_weights(without_bounds(weights)),
        norms(oracle::projected_value_norms(given.values, given.output_projection, Norm::l1)),
        exact_norms(without_bounds(norms)),
        exact_eviction(oracle::eviction_weights(logits, given.kept)),
        computed_weights(matrix({given.logits})),
        computed_norms(projected_value_norms(given.values, given.output_projection, Norm::l1)) {
    causal_softmax(computed_weights.view(), computed_weights.cols() - 1);
    eviction = eviction_weights(given.logits, computed_weights.row(0), given.kept);
    slack = perturbation_rounding(eviction, rounding_scale(given.values, given.output_projection));
    // sum_i (A_i + A'_i) sum_c |v_ic| sum_j |W_cj|: what L and theta as printed add up and subtract.
    const Row shares = oracle::kept_attention_weights(exact_weights, given.kept);
    for (int64_t i = 0; i < given.values.rows(); ++i) {
      Real size = 0;
      for (int64_t c = 0; c < given.values.cols(); ++c) {
        for (const double entry : given.output_projection.row(c))
          size += abs(Real(given.values(i, c)) * entry);
      }
      const auto index = static_cast<size_t>(i);
      terms += (exact_weights[index].value + shares[index].value) * size;
    }
    const Real sigma = total(oracle::at(exact_weights, given.stage_one));
    stage_terms = terms * (3 + 1 / sigma);
  }

  VectorView attention() const { return std::as_const(computed_weights).row(0); }
  Bounded mass(const Positions& entries) const { return oracle::sum(oracle::at(weights, entries)); }

  std::string description;
  Eviction given;
  Row logits, weights, exact_weights, norms, exact_norms, exact_eviction;
  Matrix computed_weights;
  Numbers computed_norms;
  EvictionWeights eviction;
  double slack = 0;
  Real terms = 0;        // of L and theta as printed
  Real stage_terms = 0;  // of the stages' bounds as printed
};

constexpr uint64_t kSeeds = 40;

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> result;
    for (const Regime regime : test::kRegimes) {
      for (uint64_t seed = 0; seed < kSeeds; ++seed) result.emplace_back(regime, seed);
    }
    return result;
  }();
  return all;
}

bool most_of_all(int64_t count) { return 4 * count > 3 * static_cast<int64_t>(cases().size()); }

TEST(PerturbationOracle, IsAskedInEveryRegime) {
  std::map<std::string, double> hits;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.description);
    const auto [least, most] = std::ranges::minmax_element(c.attention());
    const Real sigma = total(oracle::at(c.exact_weights, c.given.stage_one));
    const Real evicted = total(oracle::outside(c.exact_weights, c.given.kept));
    const auto largest_logit = std::ranges::max_element(c.given.logits);
    Numbers sorted = c.given.logits;
    std::ranges::sort(sorted);
    hits["flat"] += *most < 1.01 * *least;
    hits["peaked"] += *most > 0.9;
    hits["tied"] += std::ranges::adjacent_find(sorted) != sorted.end();
    hits["heaviest value smallest"] +=
        std::ranges::min_element(c.computed_norms) - c.computed_norms.begin() ==
        largest_logit - c.given.logits.begin();
    hits["logits of thousands"] += std::abs(*largest_logit) > 1e3;
    hits["evicted mass below 1e-12"] += evicted > 0 && evicted < Real("1e-12");
    hits["evicted mass between 1e-40 and 1e-12"] += evicted > Real("1e-40") && evicted < Real("1e-12");
    hits["evicted mass above 1/2"] += evicted > Real("0.5");
    hits["one entry kept"] += c.given.kept.size() == 1;
    hits["stage two empty"] += c.given.kept == c.given.stage_one;
    hits["sigma below 1/2"] += sigma < Real("0.5");
    hits["sigma above 1/2"] += sigma > Real("0.5");
    // rank^-1.5 or so: 2^1.4..2^1.6 from the first to the second, the square of it to the fourth.
    const size_t last = sorted.size() - 1;
    const double to_second = std::exp(sorted[last] - sorted[last - 1]);
    const double to_fourth = std::exp(sorted[last] - sorted[last - 3]);
    hits["power law"] += std::exp2(1.4) <= to_second && to_second <= std::exp2(1.6) &&
                         std::exp2(2.8) <= to_fourth && to_fourth <= std::exp2(3.2);
  }
  for (const auto& [what, count] : hits) EXPECT_GE(count, 0.05 * static_cast<double>(cases().size())) << what;
}

// The stable forms' values equal the definitions' in 50 digits, and the reference is within the stable forms'
// bounds: with w_i off by d_i, L by sum_i d_i P_i + gamma_{tokens + head_dim + model_dim} sum_i (|w_i| + d_i)
// P_i where P_i = sum_c |v_ic| sum_j |W_cj|, theta likewise with ||V_i|| and its own error in the place of
// P_i.
TEST(PerturbationOracle, IsMetByTheStableFormsWithinTheDerivedBounds) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.description);
    const Matrix &values = c.given.values, &projection = c.given.output_projection;
    expect_within(c.attention(), c.weights);
    expect_within(c.eviction.weights, c.exact_eviction);
    EXPECT_TRUE(within(c.eviction.kept_mass, c.mass(c.given.kept)));
    EXPECT_TRUE(within(c.eviction.evicted_mass, oracle::sum(oracle::outside(c.weights, c.given.kept))));

    const Bounded stable = oracle::output_perturbation(c.exact_eviction, values, projection);
    const Real defined =
        oracle::output_perturbation_as_printed(c.exact_weights, values, projection, c.given.kept).value;
    expect_equal(stable.value, defined, c.terms);
    const double perturbation = output_perturbation(c.eviction, values, projection);
    EXPECT_TRUE(within(perturbation, stable));
    EXPECT_TRUE(within(perturbation, {defined, stable.bound + oracle::oracle_precision() * c.terms}));

    const Bounded bound = oracle::perturbation_bound(c.exact_eviction, c.norms);
    const Real defined_bound =
        oracle::perturbation_bound_as_printed(c.exact_weights, c.exact_norms, c.given.kept).value;
    expect_equal(bound.value, defined_bound, c.terms);
    const double computed_bound = perturbation_bound(c.eviction, c.computed_norms);
    EXPECT_TRUE(within(computed_bound, bound));
    EXPECT_TRUE(within(computed_bound, {defined_bound, bound.bound + oracle::oracle_precision() * c.terms}));
  }
}

// As printed: the same sums, but their cancellation leaves gamma_k times the terms without signs, (A + A') P
// and C + (2 + 1/Sigma) S. Where the kept mass itself underflows they have no value.
TEST(PerturbationOracle, IsMetByThePrintedFormsWithinTheirWiderBounds) {
  int64_t resolved_cases = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.description);
    if (!resolved(c.mass(c.given.kept))) continue;
    ++resolved_cases;
    const Matrix &values = c.given.values, &projection = c.given.output_projection;
    EXPECT_TRUE(oracle::all_within(kept_attention_weights(c.attention(), c.given.kept),
                                   oracle::kept_attention_weights(c.weights, c.given.kept)));
    EXPECT_TRUE(within(output_perturbation_as_printed(c.attention(), values, projection, c.given.kept),
                       oracle::output_perturbation_as_printed(c.weights, values, projection, c.given.kept)));
    EXPECT_TRUE(within(perturbation_bound_as_printed(c.attention(), c.computed_norms, c.given.kept),
                       oracle::perturbation_bound_as_printed(c.weights, c.norms, c.given.kept)));
    // Of weights that are no softmax of anything: those doubles themselves, whatever they add up to.
    const Row given = oracle::exactly(c.attention());
    const EvictionWeights mean = eviction_weights(c.attention(), c.given.kept);
    expect_within(mean.weights, oracle::eviction_weights_of_mean(given, c.given.kept));
  }
  EXPECT_TRUE(most_of_all(resolved_cases)) << resolved_cases;
}

TEST(PerturbationOracle, IsMetByTheStagesBoundsWithinTheDerivedBounds) {
  int64_t resolved_cases = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.description);
    const Positions &one = c.given.stage_one, &kept = c.given.kept;
    const Real exact = oracle::stage_two_bound(c.exact_weights, c.exact_norms, one, kept).value;
    expect_equal(exact, oracle::stage_two_bound_as_printed(c.exact_weights, c.exact_norms, one, kept).value,
                 c.stage_terms);
    expect_equal(oracle::attention_only_bound(c.exact_weights, c.exact_norms, one, kept).value,
                 oracle::attention_only_bound_as_printed(c.exact_weights, c.exact_norms, one, kept).value,
                 c.stage_terms);
    if (!resolved(c.mass(one))) continue;
    ++resolved_cases;
    const VectorView weights = c.attention();
    const Numbers& norms = c.computed_norms;
    EXPECT_TRUE(within(stage_two_bound(weights, norms, one, kept),
                       oracle::stage_two_bound(c.weights, c.norms, one, kept)));
    EXPECT_TRUE(within(stage_two_bound_as_printed(weights, norms, one, kept),
                       oracle::stage_two_bound_as_printed(c.weights, c.norms, one, kept)));
    EXPECT_TRUE(within(attention_only_bound(weights, norms, one, kept),
                       oracle::attention_only_bound(c.weights, c.norms, one, kept)));
    EXPECT_TRUE(within(attention_only_bound_as_printed(weights, norms, one, kept),
                       oracle::attention_only_bound_as_printed(c.weights, c.norms, one, kept)));
  }
  EXPECT_TRUE(most_of_all(resolved_cases)) << resolved_cases;
}

// Exactly: L <= theta <= theta^, and theta^ <= theta^_relax if sigma >= 1/2, the reverse if not.
TEST(PerturbationOracle, SaysThatTheInequalitiesHold) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.description);
    const Positions &one = c.given.stage_one, &kept = c.given.kept;
    const Real perturbation =
        oracle::output_perturbation(c.exact_eviction, c.given.values, c.given.output_projection).value;
    const Real bound = oracle::perturbation_bound(c.exact_eviction, c.exact_norms).value;
    const Real two = oracle::stage_two_bound(c.exact_weights, c.exact_norms, one, kept).value;
    const Real relaxed = oracle::attention_only_bound(c.exact_weights, c.exact_norms, one, kept).value;
    const Real rounding = 1 + oracle::oracle_precision();
    EXPECT_GT(bound, 0);
    EXPECT_LE(perturbation, bound * rounding);
    EXPECT_LE(bound, two * rounding);
    if (total(oracle::at(c.exact_weights, one)) >= Real("0.5")) {
      EXPECT_LE(two, relaxed * rounding);
    } else {
      EXPECT_LE(relaxed, two * rounding);
    }
  }
}

TEST(PerturbationBound, DominatesThePerturbationUpToItsRounding) {
  int64_t ordinary = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.description);
    const double bound = perturbation_bound(c.eviction, c.computed_norms);
    EXPECT_LE(output_perturbation(c.eviction, c.given.values, c.given.output_projection), bound + c.slack);
    if (bound < 1e-290) continue;
    ++ordinary;
    EXPECT_LT(c.slack, 1e-6 * bound) << "a slack that lets everything pass";
  }
  EXPECT_TRUE(most_of_all(ordinary)) << ordinary;
}

// Why the stable form: as printed, theta falls below the exact L by cancellation alone, and below 0.
TEST(PerturbationBound, AsPrintedFallsBelowThePerturbation) {
  int64_t below = 0, negative = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.description);
    if (!resolved(c.mass(c.given.kept))) continue;
    const double printed = perturbation_bound_as_printed(c.attention(), c.computed_norms, c.given.kept);
    const Bounded exact =
        oracle::output_perturbation(c.exact_eviction, c.given.values, c.given.output_projection);
    below += Real(printed) + c.slack < exact.value;
    negative += printed < 0;
    const double stable = perturbation_bound(c.eviction, c.computed_norms);
    EXPECT_GE(Real(stable) + c.slack + exact.bound, exact.value);
  }
  EXPECT_GT(below, 0);
  EXPECT_GT(negative, 0);
}

}  // namespace
}  // namespace kvbound::reference
