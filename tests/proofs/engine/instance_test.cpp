#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <gtest/gtest.h>

#include <kvbound/proofs/engine/draw_instance.hpp>
#include <kvbound/proofs/engine/simpler.hpp>
#include <kvbound/reference/core/error.hpp>

#include "support/random_layer.hpp"

namespace kvbound::proofs::instance_test {
namespace {

using test::matrix;
using test::message_of;
using Positions = std::vector<int64_t>;

constexpr Sizes kLayer{.tokens = 9, .head_dim = 3, .model_dim = 4, .query_heads = 3, .queries = 2};
constexpr Sizes kMerging{
    .tokens = 7, .head_dim = 3, .model_dim = 2, .query_heads = 2, .queries = 2, .merging = true};

// With large instances: long alone, wide alone, and both.
constexpr Sizes kLong{.tokens = 8, .head_dim = 3, .model_dim = 3, .queries = 2, .long_tokens = 64};
constexpr Sizes kWide{.tokens = 8, .head_dim = 3, .model_dim = 3, .query_heads = 3, .wide_group = 16};

Instance draw(const Sizes& largest, uint64_t seed, int size = rc::kNominalSize) {
  return instances(largest)(rc::Random(seed), size).value();
}

bool equal(const Matrix& a, const Matrix& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() && std::ranges::equal(a.numbers(), b.numbers());
}

bool equal(const Instance& a, const Instance& b) {
  return a.query_heads == b.query_heads && equal(a.logits, b.logits) && equal(a.values, b.values) &&
         equal(a.output_projection, b.output_projection) && a.stage_one == b.stage_one && a.kept == b.kept &&
         a.epsilon == b.epsilon && a.votes == b.votes && equal(a.query_vectors, b.query_vectors) &&
         a.ema == b.ema;
}

// One KV head with these logits; all values and the projection are 1.
Instance with_logits(const Matrix& logits, Positions stage_one, Positions kept) {
  Instance instance;
  instance.logits = logits;
  instance.values = Matrix(logits.cols(), 1);
  for (int64_t i = 0; i < logits.cols(); ++i) instance.values(i, 0) = 1;
  instance.output_projection = matrix({{1}});
  instance.stage_one = std::move(stage_one);
  instance.kept = std::move(kept);
  require_valid(instance);
  return instance;
}

// ---- drawing

TEST(DrawnInstances, AreValidAndNoLargerThanAskedFor) {
  for (const Sizes& largest : {Sizes{}, kLayer, kMerging, Sizes{1, 1, 1, 1, 1}, Sizes{1, 1, 1, 1, 1, true}}) {
    for (int size = 0; size <= rc::kNominalSize; ++size) {
      for (uint64_t seed = 0; seed < 10; ++seed) {
        const Instance instance = draw(largest, seed, size);
        ASSERT_NO_THROW(require_valid(instance));
        ASSERT_LE(instance.tokens(), largest.tokens);
        ASSERT_LE(instance.values.cols(), largest.head_dim);
        ASSERT_LE(instance.output_projection.cols(), largest.model_dim);
        ASSERT_LE(instance.query_heads, largest.query_heads);
        ASSERT_LE(instance.queries(), largest.queries);
        ASSERT_EQ(instance.merges(), largest.merging);
        ASSERT_TRUE(std::ranges::includes(instance.kept, instance.stage_one));
        ASSERT_EQ(instance.stage_two_count(),
                  static_cast<int64_t>(instance.kept.size() - instance.stage_one.size()));
      }
    }
  }
}

TEST(DrawnInstances, ReachTheLargestSizes) {
  Sizes reached{0, 0, 0, 0, 0};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Instance instance = draw(kLayer, seed);
    reached = {
        std::max(reached.tokens, instance.tokens()), std::max(reached.head_dim, instance.values.cols()),
        std::max(reached.model_dim, instance.output_projection.cols()),
        std::max(reached.query_heads, instance.query_heads), std::max(reached.queries, instance.queries())};
  }
  EXPECT_EQ(reached.tokens, kLayer.tokens);
  EXPECT_EQ(reached.head_dim, kLayer.head_dim);
  EXPECT_EQ(reached.model_dim, kLayer.model_dim);
  EXPECT_EQ(reached.query_heads, kLayer.query_heads);
  EXPECT_EQ(reached.queries, kLayer.queries);
}

// The numbers of tokens and of query heads of the large instances among as many cases as a run has.
struct LargeCases {
  explicit LargeCases(const Sizes& sizes) {
    for (int64_t i = 0; i < kCases; ++i) {
      const auto size = static_cast<int>(i % (rc::kNominalSize + 1));
      const Instance instance = draw(sizes, static_cast<uint64_t>(i), size);
      EXPECT_NO_THROW(require_valid(instance)) << "seed " << i;
      const bool is_long = instance.tokens() > sizes.tokens,
                 is_wide = instance.query_heads > sizes.query_heads;
      if (is_long) tokens.push_back(instance.tokens());
      if (is_wide) query_heads.push_back(instance.query_heads);
      EXPECT_FALSE(is_long && is_wide) << "a case that takes much longer than others";
      EXPECT_FALSE((is_long || is_wide) && size <= rc::kNominalSize / 2) << "one of the first cases";
    }
  }
  static double share(const std::vector<int64_t>& cases) {
    return static_cast<double>(cases.size()) / kCases;
  }

  static constexpr int64_t kCases = 2000;
  std::vector<int64_t> tokens, query_heads;
};

TEST(DrawnInstances, AreLongInOneOfTenCases) {
  const LargeCases cases(kLong);
  ASSERT_FALSE(cases.tokens.empty());
  EXPECT_NEAR(LargeCases::share(cases.tokens), 0.1, 0.02);
  EXPECT_TRUE(cases.query_heads.empty());
  EXPECT_EQ(std::ranges::min(cases.tokens), kLong.tokens + 1);
  EXPECT_EQ(std::ranges::max(cases.tokens), kLong.long_tokens);
}

TEST(DrawnInstances, AreWideInOneOfTenCases) {
  const LargeCases cases(kWide);
  ASSERT_FALSE(cases.query_heads.empty());
  EXPECT_NEAR(LargeCases::share(cases.query_heads), 0.1, 0.02);
  EXPECT_TRUE(cases.tokens.empty());
  EXPECT_EQ(std::ranges::min(cases.query_heads), kWide.query_heads + 1);
  EXPECT_EQ(std::ranges::max(cases.query_heads), kWide.wide_group);
}

TEST(DrawnInstances, AreLongOrWideInOneOfTenCases) {
  const LargeCases cases(kMergingSizes);
  ASSERT_FALSE(cases.tokens.empty() || cases.query_heads.empty());
  EXPECT_NEAR(LargeCases::share(cases.tokens), 0.05, 0.015);
  EXPECT_NEAR(LargeCases::share(cases.query_heads), 0.05, 0.015);
  EXPECT_GT(std::ranges::max(cases.tokens), kLongTokens - 8);
  EXPECT_EQ(std::ranges::max(cases.query_heads), kWideGroup);
}

TEST(DrawnInstances, HaveNumbersOfFewBits) {
  const auto have_bits = [](VectorView numbers, int bits) {
    return std::ranges::all_of(
        numbers, [bits](double x) { return std::ldexp(x, bits) == std::trunc(std::ldexp(x, bits)); });
  };
  for (uint64_t seed = 0; seed < 500; ++seed) {
    for (const Sizes& largest : {kLayer, kMerging, kMergingSizes}) {
      const Instance instance = draw(largest, seed);
      ASSERT_TRUE(have_bits(instance.logits.numbers(), largest.merging ? 40 : 20)) << "seed " << seed;
      for (const VectorView numbers :
           {instance.values.numbers(), instance.output_projection.numbers(), VectorView(&instance.epsilon, 1),
            instance.query_vectors.numbers(), VectorView(&instance.ema, 1)})
        ASSERT_TRUE(have_bits(numbers, 20)) << "seed " << seed;
      ASSERT_TRUE(have_bits(instance.votes, 0)) << "seed " << seed;
    }
  }
}

TEST(DrawnInstances, ShowEveryRegimeAndItsOpposite) {
  for (const Sizes& largest : {Sizes{}, kLayer, kMerging, kLong, kWide, kMergingSizes}) {
    for (const Regime regime : largest.regimes()) {
      int64_t cases = 0;
      for (uint64_t seed = 0; seed < 400; ++seed) cases += shows(draw(largest, seed), regime);
      EXPECT_GE(cases, 20) << name(regime);
      EXPECT_LE(cases, 380) << name(regime);
    }
  }
}

TEST(DrawnInstances, AreTheSameForTheSameSeed) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_TRUE(equal(draw(kLayer, seed), draw(kLayer, seed)));
    EXPECT_FALSE(equal(draw(kLayer, seed), draw(kLayer, seed + 1)));
  }
}

// ---- shrinking

// A lexicographic measure, the most important part first, that every simplification reduces.
auto size_of(const Instance& instance) {
  double magnitude = 0;
  int64_t negative = 0;
  for (const Matrix* numbers :
       {&instance.logits, &instance.values, &instance.output_projection, &instance.query_vectors}) {
    for (const double number : numbers->numbers()) {
      magnitude += std::abs(number);  // exact: the numbers have few bits
      negative += std::signbit(number);
    }
  }
  const int64_t numbers =
      static_cast<int64_t>(instance.logits.numbers().size() + instance.values.numbers().size() +
                           instance.output_projection.numbers().size());
  double votes = 0, not_one = 0;
  for (const double number : instance.votes) votes += number;
  for (int64_t r = 0; r < instance.query_vectors.rows(); ++r) {
    not_one += instance.query_vectors(r, r) != 1;
    magnitude -= std::abs(instance.query_vectors(r, r));  // left out: a simplification to 1 may increase it
  }
  return std::tuple(numbers, instance.kept.size() + instance.stage_one.size(),
                    instance.epsilon + instance.ema + votes + not_one, magnitude, negative);
}

TEST(Simpler, IsValidAndSmaller) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (const Sizes& largest : {kLayer, kMerging}) {
      const Instance instance = draw(largest, seed);
      for (const Instance& next : simpler(instance)) {
        ASSERT_NO_THROW(require_valid(next)) << "seed " << seed;
        ASSERT_LT(size_of(next), size_of(instance)) << "seed " << seed;
      }
    }
  }
}

// Shrinking ends with the simplest instance, whichever simplification is accepted at each step.
TEST(Simpler, EndsAtTheSimplestInstanceWhicheverStepIsTaken) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    rc::Random random(seed);
    const bool merging = seed % 2 == 1;
    Instance instance = draw(merging ? kMerging : kLayer, seed);
    for (auto next = simpler(instance); !next.empty(); next = simpler(instance)) {
      instance = next[random.split().next() % next.size()];
      ASSERT_NO_THROW(require_valid(instance)) << "seed " << seed;
    }
    EXPECT_EQ(instance.tokens(), 1);
    EXPECT_EQ(size_of(instance), std::tuple(3, size_t{2}, merging ? 1.0 : 0.0, 0.0, 0)) << "one vote";
  }
}

TEST(Simpler, DropsEachTokenQueryHeadQueryAndDimension) {
  Instance instance;
  instance.query_heads = 2;
  instance.logits = matrix({{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}});
  instance.values = matrix({{1, 2}, {3, 4}, {5, 6}});
  instance.output_projection = matrix({{1, 2}, {3, 4}, {5, 6}, {7, 8}});
  instance.stage_one = {1};
  instance.kept = {1, 2};
  const std::vector<Instance> next = simpler(instance);
  const auto contains = [&](const auto& predicate) { return std::ranges::any_of(next, predicate); };
  EXPECT_TRUE(contains([](const Instance& some) {
    return equal(some.logits, matrix({{2, 3}, {5, 6}, {8, 9}, {11, 12}})) &&
           equal(some.values, matrix({{3, 4}, {5, 6}})) && some.stage_one == Positions{0} &&
           some.kept == Positions{0, 1};
  })) << "token 0";
  EXPECT_TRUE(contains([](const Instance& some) {
    return some.tokens() == 2 && some.stage_one == Positions{1} && some.kept == Positions{1};
  })) << "token 2";
  EXPECT_FALSE(contains([](const Instance& some) { return some.stage_one.empty(); })) << "token 1";
  EXPECT_TRUE(contains([](const Instance& some) {
    return some.query_heads == 1 && equal(some.logits, matrix({{7, 8, 9}, {10, 11, 12}})) &&
           equal(some.output_projection, matrix({{5, 6}, {7, 8}}));
  })) << "head 0";
  EXPECT_TRUE(contains([](const Instance& some) {
    return some.query_heads == 1 && equal(some.logits, matrix({{1, 2, 3}, {4, 5, 6}})) &&
           equal(some.output_projection, matrix({{1, 2}, {3, 4}}));
  })) << "head 1";
  EXPECT_TRUE(contains([](const Instance& some) {
    return some.query_heads == 2 && equal(some.logits, matrix({{4, 5, 6}, {10, 11, 12}}));
  })) << "every head's query 0";
  EXPECT_TRUE(contains([](const Instance& some) {
    return equal(some.values, matrix({{2}, {4}, {6}})) &&
           equal(some.output_projection, matrix({{3, 4}, {7, 8}}));
  })) << "head_dim 0";
  EXPECT_TRUE(contains([](const Instance& some) {
    return equal(some.output_projection, matrix({{1}, {3}, {5}, {7}}));
  })) << "model_dim 1";
  EXPECT_TRUE(contains([](const Instance& some) {
    return some.tokens() == 3 && some.stage_one == Positions{1} && some.kept == Positions{1};
  })) << "stage two's entry evicted";
}

TEST(Simpler, LeavesOtherLogitsAsTheyAreWhereAQueryIsDropped) {
  Instance instance;
  instance.query_heads = 2;
  instance.logits = matrix({{1, 2}, {3, 4}});
  instance.values = matrix({{1}, {2}});
  instance.output_projection = matrix({{1}, {1}});
  instance.stage_one = instance.kept = {0};
  instance.votes = {3, 5};
  instance.query_vectors = matrix({{2, 0}, {4, 8}});
  require_valid(instance);
  const std::vector<Instance> next = simpler(instance);
  const auto contains = [&](const auto& predicate) { return std::ranges::any_of(next, predicate); };
  EXPECT_TRUE(contains([](const Instance& some) {
    return equal(some.logits, matrix({{3, 4}})) && equal(some.query_vectors, matrix({{8}}));
  })) << "head 0";
  EXPECT_TRUE(contains([](const Instance& some) {
    return equal(some.logits, matrix({{1, 2}})) && equal(some.query_vectors, matrix({{2}}));
  })) << "head 1";
  EXPECT_TRUE(contains([](const Instance& some) { return some.votes == std::vector<double>{3}; }))
      << "token 1";
  EXPECT_TRUE(contains([](const Instance& some) { return some.votes == std::vector<double>{3, 1}; }));
  EXPECT_TRUE(contains([](const Instance& some) {
    return equal(some.query_vectors, matrix({{2, 0}, {0, 8}}));
  }));
  EXPECT_TRUE(contains([](const Instance& some) {
    return equal(some.query_vectors, matrix({{2, 0}, {4, 1}}));
  }));
}

TEST(Simpler, IsWhatDrawnInstancesShrinkTo) {
  const auto drawn = instances(kLayer)(rc::Random(3), rc::kNominalSize);
  auto shrinks = drawn.shrinks();
  for (const Instance& expected : simpler(drawn.value())) {
    const auto next = shrinks.next();
    ASSERT_TRUE(next);
    ASSERT_TRUE(equal(next->value(), expected));
  }
  EXPECT_FALSE(shrinks.next());
}

// ---- regimes

TEST(Regimes, SmallStageOneIsBelowOneHalf) {
  const auto small = [](const Matrix& logits, Positions stage_one, Positions kept) {
    return shows(with_logits(logits, std::move(stage_one), std::move(kept)), Regime::small_stage_one);
  };
  EXPECT_FALSE(small(matrix({{0, 0}}), {0}, {0})) << "exactly 1/2";
  EXPECT_TRUE(small(matrix({{0, 0x1p-20}}), {0}, {0}));
  EXPECT_TRUE(small(matrix({{0, 0, 0}}), {0}, {0, 1})) << "kept is another matter";
  EXPECT_FALSE(small(matrix({{0, 0, 0}}), {0, 1}, {0, 1}));
}

TEST(Regimes, AlmostNothingEvictedIsSomething) {
  const auto almost_nothing = [](const Matrix& logits, Positions kept) {
    return shows(with_logits(logits, {0}, std::move(kept)), Regime::almost_nothing_evicted);
  };
  EXPECT_TRUE(almost_nothing(matrix({{0, -28}}), {0})) << "7e-13";
  EXPECT_FALSE(almost_nothing(matrix({{0, -27}}), {0})) << "2e-12";
  EXPECT_FALSE(almost_nothing(matrix({{0, -28}}), {0, 1})) << "nothing is evicted";
  EXPECT_TRUE(almost_nothing(matrix({{0, -1000}}), {0})) << "less than a double could hold";
}

TEST(Regimes, ADominatedQueryHeedsTheOthersALittle) {
  const auto dominated = [](const Matrix& logits) {
    return shows(with_logits(logits, {0}, {0}), Regime::dominated);
  };
  EXPECT_TRUE(dominated(matrix({{0, 28}}))) << "7e-13";
  EXPECT_FALSE(dominated(matrix({{0, 27}}))) << "2e-12";
  EXPECT_FALSE(dominated(matrix({{0, 28, 28}}))) << "two share it";
  EXPECT_TRUE(dominated(matrix({{0, 0}, {1000, 0}}))) << "one query is enough";
  EXPECT_FALSE(dominated(matrix({{0}}))) << "there are no others";
}

TEST(Regimes, TiedTokensAreTheSameInEverything) {
  const auto tied = [](const Matrix& logits) { return shows(with_logits(logits, {0}, {0}), Regime::tied); };
  EXPECT_TRUE(tied(matrix({{5, 1, 2, 1}})));
  EXPECT_FALSE(tied(matrix({{5, 1, 2, 3}})));
  EXPECT_FALSE(tied(matrix({{1, 2, 1}}))) << "one of them is in stage one";
  EXPECT_FALSE(tied(matrix({{1}})));
  EXPECT_FALSE(tied(matrix({{0, 1, 1}, {0, 1, 2}}))) << "the second query tells them apart";
  EXPECT_TRUE(tied(matrix({{0, 1, 1}, {0, 2, 2}})));
  EXPECT_TRUE(tied(matrix({{1, 0.0, -0.0}})));
  Instance instance = with_logits(matrix({{0, 1, 1}}), {0}, {0});
  instance.values(2, 0) = 2;
  EXPECT_FALSE(shows(instance, Regime::tied)) << "their values differ";
}

TEST(Regimes, OneQueryIsEnough) {
  const Instance instance = with_logits(matrix({{0, -1}, {-40, 0}, {0, -40}}), {0}, {0});
  EXPECT_TRUE(shows(instance, Regime::small_stage_one));
  EXPECT_TRUE(shows(instance, Regime::almost_nothing_evicted));
}

TEST(Regimes, EmptyStageTwoAndOneKeptAreAboutTheSets) {
  const Matrix logits = matrix({{0, 1, 2}});
  const auto shown = [&](Positions stage_one, Positions kept, Regime regime) {
    return shows(with_logits(logits, std::move(stage_one), std::move(kept)), regime);
  };
  EXPECT_TRUE(shown({0, 2}, {0, 2}, Regime::empty_stage_two));
  EXPECT_FALSE(shown({0}, {0, 2}, Regime::empty_stage_two));
  EXPECT_TRUE(shown({2}, {2}, Regime::single_kept));
  EXPECT_FALSE(shown({2}, {0, 2}, Regime::single_kept));
}

// One KV head whose entries merge: q = 1, so that keys are twice the logits.
Instance merging_with(const Matrix& logits, Positions kept, std::vector<double> votes) {
  Instance instance = with_logits(logits, {kept.front()}, kept);
  instance.votes = std::move(votes);
  instance.query_vectors = Matrix(logits.rows(), logits.rows());
  for (int64_t r = 0; r < logits.rows(); ++r) instance.query_vectors(r, r) = 1;
  require_valid(instance);
  return instance;
}

TEST(Regimes, WithoutVotesThereAreNoneOfMerging) {
  const Instance instance = with_logits(matrix({{6000, 6000}}), {0}, {0});
  for (const Regime regime : kMergingRegimes)
    EXPECT_EQ(shows(instance, regime), regime == Regime::single_kept);
}

TEST(Regimes, AClusterAgreesIfItsScoresAreEqual) {
  const auto shown = [](const Matrix& logits, Positions kept, Regime regime) {
    return shows(merging_with(logits, std::move(kept), std::vector<double>(logits.cols(), 1)), regime);
  };
  EXPECT_TRUE(shown(matrix({{2, 2, 5}}), {0, 2}, Regime::agreed));
  EXPECT_FALSE(shown(matrix({{2, 2, 5}}), {0, 1, 2}, Regime::agreed)) << "no entry merges";
  EXPECT_FALSE(shown(matrix({{2, 3, 3}}), {0, 2}, Regime::agreed)) << "0 and 1 merge";
  EXPECT_FALSE(shown(matrix({{2, 3}, {2, 2}}), {0}, Regime::agreed)) << "the second is a later query's";
  EXPECT_TRUE(shown(matrix({{2, 2 + 0x1p-20}}), {0}, Regime::nearly_agreed)) << "KL = 2^-43";
  EXPECT_FALSE(shown(matrix({{2, 2 + 0x1p-18}}), {0}, Regime::nearly_agreed)) << "KL = 2^-39";
  EXPECT_FALSE(shown(matrix({{2, 2}}), {0}, Regime::nearly_agreed));
}

TEST(Regimes, AClusterIsNearlySingularIfItsMeanScoreHasNoLogarithm) {
  const auto nearly_singular = [](double first, double second) {
    return shows(merging_with(matrix({{first, second}}), {0}, {1, 1}), Regime::nearly_singular);
  };
  const double x = 0.5;
  EXPECT_FALSE(nearly_singular(x, 0)) << "m = 0.31";
  EXPECT_FALSE(nearly_singular(-x, 0)) << "m = -0.19";
  EXPECT_FALSE(nearly_singular(0, 0)) << "KL = 0";
  const double centre = x / (1 + std::exp(-x));  // the weighted mean m of scores x and 0
  EXPECT_TRUE(nearly_singular(x - centre, -centre));
  EXPECT_FALSE(nearly_singular(x - centre + 1e-6, -centre + 1e-6)) << "KL = 0.03";
}

TEST(Regimes, LogitsVotesAndQueriesAreJudgedByTheirSize) {
  EXPECT_TRUE(shows(merging_with(matrix({{0, -5001}}), {0}, {1, 1}), Regime::huge_logits));
  EXPECT_FALSE(shows(merging_with(matrix({{0, -5000}}), {0}, {1, 1}), Regime::huge_logits));
  EXPECT_TRUE(shows(merging_with(matrix({{0, 0}}), {0}, {1, 1e5}), Regime::many_votes));
  EXPECT_FALSE(shows(merging_with(matrix({{0, 0}}), {0}, {1, 99999}), Regime::many_votes));
  Instance instance = merging_with(matrix({{0, 0}, {0, 0}}), {0}, {1, 1});
  EXPECT_FALSE(shows(instance, Regime::parallel_queries));
  instance.query_vectors(1, 0) = -100;
  EXPECT_TRUE(shows(instance, Regime::parallel_queries)) << "cosine -0.99995: the other way";
  instance.query_vectors(1, 0) = 50;
  EXPECT_FALSE(shows(instance, Regime::parallel_queries)) << "cosine 0.9998";
}

TEST(Regimes, AClusterIsPredictedIfItsMergedEntryIsToo) {
  const auto predicted = [](const Matrix& logits) {
    return shows(merging_with(logits, {0}, {1, 1}), Regime::predicted);
  };
  EXPECT_FALSE(predicted(matrix({{0, 0}}))) << "no later query";
  EXPECT_FALSE(predicted(matrix({{0.3, 6.1}}))) << "no later query, and epsilon is a rounding of 50 digits";
  EXPECT_FALSE(predicted(matrix({{0, 0}, {0, 0}}))) << "epsilon = 0";
  EXPECT_TRUE(predicted(matrix({{0, 0}, {0, -0.5}}))) << "e^0.5 - 1 = 0.65";
  EXPECT_FALSE(predicted(matrix({{0, 0}, {0, -0.7}}))) << "e^0.7 - 1 = 1.01";
  // Each member is predicted exactly, but the later query is orthogonal to the first and sees the mean
  // key: m = 5.99, z* = 5.31.
  EXPECT_TRUE(predicted(matrix({{0, 6}, {0, 6}}))) << "1 - e^-0.68 = 0.49";
}

// ---- validity

// The message of the exception of type Expected with which a valid instance of 3 tokens
// is refused after `spoil`.
template <class Expected, class Spoil>
std::string refused(const Spoil& spoil) {
  Instance instance = with_logits(matrix({{0, 1, 2}}), {0}, {0, 2});
  spoil(instance);
  return message_of<Expected>([&] { require_valid(instance); });
}

TEST(RequireValid, NamesWhatIsWrong) {
  const auto shape = [](const auto& spoil) { return refused<ShapeMismatch>(spoil); };
  const auto number = [](const auto& spoil) { return refused<NonFinite>(spoil); };
  EXPECT_EQ(shape([](Instance&) {}), "no error");
  EXPECT_EQ(shape([](Instance& i) { i.query_heads = 0; }), "query_heads is below 1");
  EXPECT_EQ(shape([](Instance& i) { i.query_heads = 2; }),
            "rows of logits is 1 but query_heads times queries is 0");
  EXPECT_EQ(shape([](Instance& i) { i.logits = Matrix(0, 3); }), "logits are empty");
  EXPECT_EQ(shape([](Instance& i) { i.logits = Matrix(1, 0); }), "logits are empty");
  EXPECT_EQ(shape([](Instance& i) {
              i.query_heads = 2;
              i.logits = Matrix(3, 3);
            }),
            "rows of logits is 3 but query_heads times queries is 2");
  EXPECT_EQ(shape([](Instance& i) { i.values = Matrix(2, 1); }),
            "columns of logits is 3 but rows of values is 2");
  EXPECT_EQ(shape([](Instance& i) { i.output_projection = Matrix(2, 1); }),
            "rows of output_projection is 2 but query_heads * head_dim is 1");
  EXPECT_EQ(shape([](Instance& i) { i.stage_one = {}; }), "stage_one is empty");
  EXPECT_EQ(shape([](Instance& i) { i.kept = {}; }), "kept is empty");
  EXPECT_EQ(shape([](Instance& i) { i.stage_one = {-1}; }), "stage_one has the position -1 outside 0..2");
  EXPECT_EQ(shape([](Instance& i) { i.kept = {0, 3}; }), "kept has the position 3 outside 0..2");
  EXPECT_EQ(shape([](Instance& i) { i.kept = {2, 0}; }), "kept is not ascending");
  EXPECT_EQ(shape([](Instance& i) { i.kept = {0, 0}; }), "kept is not ascending");
  EXPECT_EQ(shape([](Instance& i) { i.stage_one = {1}; }), "stage_one is not part of kept");
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  EXPECT_EQ(number([&](Instance& i) { i.logits(0, 1) = infinity; }),
            "logits has inf, which is not within +-20000");
  EXPECT_EQ(number([&](Instance& i) { i.logits(0, 1) = 20001; }),
            "logits has 20001, which is not within +-20000");
  EXPECT_EQ(number([&](Instance& i) { i.logits(0, 1) = nan; }),
            "logits has nan, which is not within +-20000");
  EXPECT_EQ(number([&](Instance& i) { i.values(2, 0) = -infinity; }),
            "values has -inf, which is not within +-1e+50");
  EXPECT_EQ(number([&](Instance& i) { i.output_projection(0, 0) = infinity; }),
            "output_projection has inf, which is not within +-1e+50");
  const auto spoilt_votes = [](Instance& i) { i.votes = {1, 0.5, 1}, i.query_vectors = matrix({{1}}); };
  EXPECT_EQ(shape([](Instance& i) { i.votes = {1}; }), "votes is 1 but columns of logits is 3");
  EXPECT_EQ(shape([](Instance& i) {
              i.votes = {1, 1, 1};
            }),
            "rows of query_vectors is 0 but rows of logits is 1");
  EXPECT_EQ(number(spoilt_votes), "votes are below 1");
  EXPECT_EQ(number([](Instance& i) {
              i.votes = {1, 1, 1}, i.query_vectors = matrix({{0}});
            }),
            "query_vectors has next to nothing on its diagonal");
  EXPECT_EQ(number([](Instance& i) {
              i.votes = {1, 1, 1}, i.query_vectors = matrix({{1}}), i.ema = 1;
            }),
            "ema is not within 0 and 1");
  EXPECT_EQ(shape([](Instance& i) {
              i.logits = matrix({{0, 1, 2}, {0, 1, 2}});
              i.votes = {1, 1, 1};
              i.query_vectors = matrix({{1, 1}, {0, 1}});
            }),
            "query_vectors has numbers above its diagonal");
  EXPECT_EQ(number([&](Instance& i) { i.epsilon = nan; }), "epsilon has nan, which is not within +-1e+50");
  EXPECT_EQ(number([&](Instance& i) { i.epsilon = -0x1p-10; }), "epsilon is negative");
}

}  // namespace
}  // namespace kvbound::proofs::instance_test
