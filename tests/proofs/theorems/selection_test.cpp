// What a selection of the reference is required to be. A = (3, 2, 2, 1) / 8, and entries 1 and 2 are equal.
#include <gtest/gtest.h>

#include <kvbound/proofs/theorems/selection.hpp>

#include "support/random_layer.hpp"

namespace kvbound::proofs::selection_test {
namespace {

using test::matrix;
using Positions = std::vector<int64_t>;

// The first failure, "" if there is none, of a choice of two entries by these scores.
std::string failure(const Positions& choice, const oracle::Row& scores = {3, 2, 2, 1}) {
  Instance instance;
  instance.logits = matrix({{3, 2, 2, 1}});
  instance.values = matrix({{1}, {1}, {1}, {1}});
  instance.output_projection = matrix({{1}});
  instance.stage_one = instance.kept = {0};
  Outcome outcome;
  hold_selection(instance, scores, {0, 1}, choice, outcome);
  return outcome.holds() ? "" : outcome.failure();
}

TEST(HoldSelection, AllowsTheExactChoiceAlone) {
  EXPECT_EQ(failure({0, 1}), "");
  EXPECT_EQ(failure({1, 3}),
            "the reference: cannot tell their scores apart where it selects 3 rather than 0");
}

TEST(HoldSelection, AllowsWhatErrorBoundsDoNotTellApart) {
  EXPECT_EQ(failure({1, 3}, {{3, 1}, 2, 2, {1, 1}}), "");
  EXPECT_NE(failure({1, 3}, {{3, 1}, 2, 2, {1, 0.5}}), "");
}

TEST(HoldSelection, LetsTheSmallerIndexWinBetweenEqualTokens) {
  EXPECT_EQ(failure({0, 2}),
            "the reference: the smaller index wins between equal tokens where it selects 2 rather than 1");
}

TEST(HoldSelection, RefusesWhatIsNoSetOfThatSize) {
  EXPECT_EQ(failure({0}), "the reference: selects as many entries");
  EXPECT_EQ(failure({1, 0}), "the reference: selects each of them once, ascending");
  EXPECT_EQ(failure({0, 0}), "the reference: selects each of them once, ascending");
}

}  // namespace
}  // namespace kvbound::proofs::selection_test
