#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/head_kv.hpp>

#include "support/random_layer.hpp"

namespace kvbound::reference::head_kv_test {
namespace {

using test::integer;
using test::message_of;
using Counts = std::vector<int64_t>;
using Importances = std::vector<HeadImportance>;
using Rational = boost::multiprecision::cpp_rational;

Decimal decimal(const std::string& text) { return *parse_decimal(text); }

int64_t floor_of(const Rational& number) {
  return static_cast<int64_t>(numerator(number) / denominator(number));
}

// Each head's part of a pool, in rational numbers; of `sharing` heads alone.
Rational part_of(size_t head, const std::vector<size_t>& sharing, const Importances& importances,
                 int64_t pool) {
  HeadImportance sum = 0;
  for (const size_t other : sharing) sum += importances[other];
  if (sum == 0) return Rational(pool, std::ssize(sharing));
  return Rational(HeadImportance(pool * importances[head]), sum);
}

// The definition, one head after another: the first that would get more than there is gets all.
Counts by_definition(const HeadKvBudget& budget, const Importances& importances) {
  const int64_t candidates = budget.budget - budget.always_kept;
  Rational beta(budget.beta.digits);
  for (int place = 0; place < budget.beta.places; ++place) beta /= 10;
  const int64_t shared = floor_of(candidates / beta), least = budget.budget - shared;
  int64_t pool = shared * std::ssize(importances);
  std::vector<size_t> sharing(importances.size());
  std::iota(sharing.begin(), sharing.end(), size_t{0});
  Counts result(importances.size(), budget.tokens);
  for (;;) {
    const auto full = std::ranges::find_if(sharing, [&](size_t head) {
      return least + part_of(head, sharing, importances, pool) > budget.tokens;
    });
    if (full == sharing.end()) break;
    sharing.erase(full);
    pool -= budget.tokens - least;
  }
  std::vector<std::pair<Rational, size_t>> fractions;
  int64_t rest = pool;
  for (const size_t head : sharing) {
    const Rational part = part_of(head, sharing, importances, pool);
    result[head] = least + floor_of(part);
    rest -= floor_of(part);
    fractions.emplace_back(floor_of(part) - part, head);
  }
  std::ranges::sort(fractions);
  for (int64_t i = 0; i < rest; ++i) ++result[fractions[i].second];
  return result;
}

TEST(HeadKvBudgets, SharesThePoolByImportance) {
  // k = 12, of which 10 are shared: a pool of 40 for importances of 4, 3, 2, 1.
  const HeadKvBudget budget{.budget = 16, .always_kept = 4, .tokens = 100};
  EXPECT_EQ(head_kv_budgets(budget, Importances{4, 3, 2, 1}), (Counts{22, 18, 14, 10}));
  EXPECT_EQ(head_kv_budgets(budget, Importances{1, 0, 0, 0}), (Counts{46, 6, 6, 6}));
}

TEST(HeadKvBudgets, GivesTheRestToTheLargestFractions) {
  // A pool of 3 for 5, 2, 1: shares of 1.875, 0.75 and 0.375.
  const HeadKvBudget budget{.budget = 4, .tokens = 9, .beta = decimal("3")};
  EXPECT_EQ(head_kv_budgets(budget, Importances{5, 2, 1}), (Counts{5, 4, 3}));
  // A pool of 4 for 5, 1, 1, 1: shares of 2.5 and 0.5. Of equal fractions the first ones come first.
  EXPECT_EQ(head_kv_budgets(budget, Importances{5, 1, 1, 1}), (Counts{6, 4, 3, 3}));
}

TEST(HeadKvBudgets, AHeadThatWouldGetMoreThanThereIsGetsAll) {
  // A pool of 20 for 8, 1, 1, 0: the first one's 16 and 1 more exceed 12; of the other 9 two heads get 4.5.
  const HeadKvBudget budget{.budget = 6, .tokens = 12};
  EXPECT_EQ(head_kv_budgets(budget, Importances{8, 1, 1, 0}), (Counts{12, 6, 5, 1}));
  // Behind the first one nothing is important any more: the others get equal shares.
  EXPECT_EQ(head_kv_budgets(budget, Importances{8, 0, 0, 0}), (Counts{12, 4, 4, 4}));
}

TEST(HeadKvBudgets, KeepsAllWhereTheBudgetIsThePrompt) {
  EXPECT_EQ(head_kv_budgets({.budget = 7, .always_kept = 2, .tokens = 7}, Importances{9, 0, 4}),
            (Counts{7, 7, 7}));
  EXPECT_EQ(head_kv_budgets({.budget = 3, .always_kept = 3, .tokens = 7}, Importances{9, 0, 4}),
            (Counts{3, 3, 3}));
  EXPECT_EQ(head_kv_budgets({.budget = 1, .tokens = 7}, Importances{}), Counts{});
}

TEST(HeadKvBudgets, SharesOutInExactArithmetic) {
  // A pool of 2 for 3 and 1: shares of 1.5 and 0.5, or less and more than that by what doubles cannot hold.
  const HeadImportance large = pow(HeadImportance(10), 30);
  const HeadKvBudget budget{.budget = 1, .tokens = 9, .beta = decimal("1")};
  EXPECT_EQ(head_kv_budgets(budget, Importances{3 * large, large}), (Counts{2, 0}));
  EXPECT_EQ(head_kv_budgets(budget, Importances{3 * large, large + 1}), (Counts{1, 1}));
}

TEST(HeadKvBudgets, RefusesWhatItCannotShare) {
  EXPECT_THROW(head_kv_budgets({.budget = 3, .tokens = 5, .beta = decimal("0.99")}, Importances{1}),
               InvalidPolicy);
  EXPECT_THROW(head_kv_budgets({.budget = 6, .tokens = 5}, Importances{1}), ShapeMismatch);
  EXPECT_THROW(head_kv_budgets({.budget = 3, .always_kept = 4, .tokens = 5}, Importances{1}), ShapeMismatch);
  EXPECT_EQ(message_of<ShapeMismatch>([] {
              head_kv_budgets({.budget = 3, .tokens = 5}, Importances{1, -1});
            }),
            "the importance of head 1 is negative: -1");
  EXPECT_THROW(
      head_kv_budgets({.budget = int64_t{1} << 61, .tokens = int64_t{1} << 61}, Importances{1, 1, 1}),
      ShapeMismatch);
}

RC_GTEST_PROP(HeadKvBudgets, FollowsTheDefinition, ()) {
  const int64_t tokens = *integer(1, 40), budget = *integer(1, tokens);
  const HeadKvBudget shared{
      .budget = budget,
      .always_kept = *integer(0, budget),
      .tokens = tokens,
      .beta = decimal(std::to_string(*integer(1, 3)) + "." + std::to_string(*integer(1, 9)))};
  const int64_t heads = *integer(1, 8), kinds = *integer(1, 30);
  Importances importances;
  for (int64_t h = 0; h < heads; ++h) importances.push_back(*integer(0, 3) == 0 ? 0 : *integer(0, kinds));
  const Counts result = head_kv_budgets(shared, importances);
  RC_ASSERT(result == by_definition(shared, importances));
  RC_ASSERT(std::accumulate(result.begin(), result.end(), int64_t{0}) == heads * budget);
  for (const int64_t own : result) RC_ASSERT(shared.always_kept <= own && own <= tokens);
}

}  // namespace
}  // namespace kvbound::reference::head_kv_test
