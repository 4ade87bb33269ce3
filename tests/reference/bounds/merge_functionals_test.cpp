// What rounding does to a merged entry as a whole: bounds that its worst case attains, far below those
// of the elements together.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/core/infinity.hpp>

#include "cluster_case.hpp"
#include "directed.hpp"
#include "support/random_layer.hpp"

namespace kvbound::test::merge_functionals_test {
namespace {

using namespace reference;

constexpr double kOff = 1e-3;

// A large cluster of random members, without rounding.
ClusterCase large_cluster(uint64_t seed, int64_t heads, int64_t members = 200, int64_t head_dim = 16) {
  Random random(seed);
  ClusterCase given;
  given.members = {random.matrix(members, head_dim), random.matrix(members, head_dim),
                   std::vector<double>(static_cast<size_t>(members), 1), random.matrix(heads, members)};
  given.errors = {Matrix(members, head_dim), Matrix(members, head_dim), Matrix(heads, members)};
  given.queries = random.matrix(heads, head_dim);
  for (int64_t h = 0; h < heads; ++h) given.denominators.push_back(6 + random.uniform(0, 1));
  given.denominator_errors.assign(static_cast<size_t>(heads), 0);
  given.arithmetic = nothing_rounds();
  return given;
}

MergedEntry merged(const KeyRule& rule, const ClusterCase& given) {
  return merge_cluster(MergeQueries(rule, given.queries, kScale, given.denominators), given.members);
}

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// A part of the merged entry, with the error bounds of its gain, of itself and of its elements together.
struct Whole {
  std::vector<double> numbers;
  double bound = 0, by_elements = 0;
};

Whole whole_of(const std::vector<double>& numbers, const std::vector<double>& errors,
               const std::vector<double>& savings) {
  Whole whole{numbers};
  for (size_t c = 0; c < numbers.size(); ++c) whole.by_elements += std::abs(numbers[c]) * errors[c];
  whole.bound = whole.by_elements - savings.at(0);
  return whole;
}

struct WholeEntry {
  Whole key, value;
};

WholeEntry whole_entry(const KeyRule& rule, const ClusterCase& given) {
  const MergedEntry entry = merged(rule, given);
  const MergedEntryErrors errors =
      merge_cluster_errors({rule, given.queries, kScale, given.denominators, given.denominator_errors},
                           given.members, given.errors, given.arithmetic, {{entry.key}, {entry.value}});
  return {whole_of(entry.key, errors.key, errors.key_savings),
          whole_of(entry.value, errors.value, errors.value_savings)};
}

// How far <w, part> moves if each of these inputs is off by kOff in the direction that moves it most.
double worst_move(const KeyRule& rule, const ClusterCase& given, std::vector<double> MergedEntry::*part,
                  const std::function<std::vector<double*>(ClusterCase&)>& inputs) {
  const std::vector<double> direction = merged(rule, given).*part;
  ClusterCase theirs = given;
  const std::vector<double*> numbers = inputs(theirs);
  std::vector<double> signs;
  for (double* number : numbers) {
    const double own = *number;
    *number += kOff;
    signs.push_back(inner(direction, merged(rule, theirs).*part) < inner(direction, direction) ? -1 : 1);
    *number = own;
  }
  for (size_t i = 0; i < numbers.size(); ++i) *numbers[i] += signs[i] * kOff;
  return std::abs(inner(direction, merged(rule, theirs).*part) - inner(direction, direction));
}

// The share of the bound that errors of this kind attain.
void expect_attained(double moved, const Whole& whole, double least, double most_of_elements) {
  EXPECT_LE(moved, whole.bound);
  EXPECT_GE(moved, least * whole.bound);
  EXPECT_LT(whole.bound, most_of_elements * whole.by_elements);
}

std::vector<double*> scores(ClusterCase& given) { return pointers(given.members.log_scores); }

TEST(MergeFunctionals, AreAttainedByScoresThatAreOffInTheWorstDirection) {
  for (const MergedKey key : {MergedKey::convex, MergedKey::min_norm}) {
    const KeyRule rule{key, MergeGqa::mean, 0.3};
    ClusterCase given = large_cluster(1, 1);
    given.errors.log_scores = filled(1, 200, kOff);
    const WholeEntry whole = whole_entry(rule, given);
    expect_attained(worst_move(rule, given, &MergedEntry::value, scores), whole.value, 0.95, 0.5);
    if (key != MergedKey::convex) continue;  // the correction of a key is bounded by its elements
    expect_attained(worst_move(rule, given, &MergedEntry::key, scores), whole.key, 0.95, 0.5);
  }
}

TEST(MergeFunctionals, OfSeveralHeadsAreAttainedNearly) {
  const KeyRule rule{MergedKey::convex, MergeGqa::joint, 0.3};
  ClusterCase given = large_cluster(2, 3, 60);
  given.errors.log_scores = filled(3, 60, kOff);
  const WholeEntry whole = whole_entry(rule, given);
  // Errors of a head's weights and of its share follow from the same scores.
  expect_attained(worst_move(rule, given, &MergedEntry::value, scores), whole.value, 0.5, 0.6);
  expect_attained(worst_move(rule, given, &MergedEntry::key, scores), whole.key, 0.9, 0.5);
}

TEST(MergeFunctionals, CountTheErrorsOfTheHeadsShares) {
  const KeyRule rule{MergedKey::convex, MergeGqa::joint, 0.3};
  ClusterCase given = large_cluster(3, 3, 5);
  given.denominator_errors.assign(3, kOff);
  const double moved = worst_move(rule, given, &MergedEntry::value, [](ClusterCase& of) {
    std::vector<double*> numbers;
    for (double& x : of.denominators) numbers.push_back(&x);
    return numbers;
  });
  expect_attained(moved, whole_entry(rule, given).value, 0.9, 1);
}

// They are off in each element by itself, so that nothing is saved.
TEST(MergeFunctionals, CountTheErrorsOfTheMembers) {
  for (const int64_t heads : {1, 3}) {
    const KeyRule rule{MergedKey::convex, heads == 1 ? MergeGqa::mean : MergeGqa::joint, 0.3};
    ClusterCase given = large_cluster(4, heads, 20, 4);
    given.errors.values = filled(20, 4, kOff);
    const double moved = worst_move(rule, given, &MergedEntry::value,
                                    [](ClusterCase& of) { return pointers(of.members.values); });
    expect_attained(moved, whole_entry(rule, given).value, 0.95, 1 + 1e-9);
  }
}

TEST(MergeFunctionals, OfTheBaselinesAreBelowTheirElementsTogether) {
  ClusterCase given = large_cluster(5, 1);
  given.errors.keys = filled(200, 16, 1e-4);
  for (const auto& errors_of : {similarity_mean_errors, gaussian_mean_errors}) {
    std::vector<double> ones(16, 1);
    const MergedEntryErrors errors =
        errors_of(given.members, given.errors, given.arithmetic, {{ones}, {ones}});
    const Whole whole = whole_of(ones, errors.value, errors.value_savings);
    EXPECT_GT(whole.bound, 0);
    EXPECT_LT(whole.bound, 0.5 * whole.by_elements);
    EXPECT_GT(errors.key_savings.at(0), 0);
  }
}

TEST(MergeFunctionals, AreThoseOfTheElementsWhereTheWeightsAreUnknown) {
  const KeyRule rule{MergedKey::convex, MergeGqa::mean, 0.3};
  ClusterCase given = large_cluster(6, 1);
  given.errors.log_scores = filled(1, 200, 1);
  const WholeEntry whole = whole_entry(rule, given);
  EXPECT_EQ(whole.value.bound, whole.value.by_elements);
  EXPECT_LT(whole.value.by_elements, kInfinity) << "the range of the members";
}

TEST(MergeFunctionals, OfKeysThatAreScaledAreNotKnown) {
  ClusterCase given = large_cluster(7, 1);
  given.errors.log_scores = filled(1, 200, 1e-6);
  const std::vector<double> ones(16, 1);
  const MergedEntryErrors errors =
      merge_cluster_errors({{MergedKey::zip, MergeGqa::mean, 0.3}, given.queries, kScale, {}, {}},
                           given.members, given.errors, given.arithmetic, {{ones}, {ones}});
  EXPECT_LT(errors.key.front(), kInfinity);
  EXPECT_TRUE(errors.key_savings.empty());
  EXPECT_GT(errors.value_savings.at(0), 0);
}

}  // namespace
}  // namespace kvbound::test::merge_functionals_test
