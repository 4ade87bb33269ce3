#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

#include "support/random_layer.hpp"
#include "support/threads.hpp"
#include "support/voted_cache.hpp"

namespace kvbound::reference::obcache_test {
namespace {

using oracle::change;
using oracle::exact_logits;
using oracle::Measured;
using oracle::near;
using test::matrix;
using test::message_of;
using test::Random;
using test::RandomLayer;
using Cache = test::VotedCache;

constexpr Change kChanges[] = {Change::value, Change::key, Change::joint, Change::exact, Change::slot};
constexpr const char* kNames[] = {"value", "key", "joint", "exact", "slot"};
const char* name(Change change) { return kNames[static_cast<size_t>(change)]; }
const double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> list(VectorView numbers) { return {numbers.begin(), numbers.end()}; }

// A = (1/4, 3/4), v = (4, 8), o = 7.
Cache two_entries() { return {matrix({{0}, {std::log(3)}}), matrix({{4}, {8}}), matrix({{1}}), {}}; }

// A = (1/8, 2/8, 5/8), v = (8, 16, 0), o = 5: the last entry has more than half of the weight.
Cache three_entries() {
  return {matrix({{0}, {std::log(2)}, {std::log(5)}}), matrix({{8}, {16}, {0}}), matrix({{1}}), {}};
}

void expect_numbers(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t j = 0; j < actual.size(); ++j) {
    // The C library's exp and log are off by a few units in the last place.
    EXPECT_NEAR(actual[j], expected[j], 1e-14 * expected[j] + 1e-300) << "entry " << j;
  }
}

TEST(ScoredAttention, GivesTheOutputAndTheWeights) {
  for (const Change change : kChanges) {
    const ScoredAttention attention = three_entries().scored(change);
    expect_numbers(list(attention.weights.row(0)), {0.125, 0.25, 0.625});
    expect_numbers(list(attention.output.row(0)), {5});
  }
}

TEST(ScoredAttention, ByValueIsTheLengthOfWhatTheEntryAdds) {
  expect_numbers(two_entries().scores(Change::value), {1, 36});       // 4/4, 8 * 3/4
  expect_numbers(three_entries().scores(Change::value), {1, 16, 0});  // 8/8, 16/4, 0
}

TEST(ScoredAttention, ByKeyWeighsTheLogit) {
  // A^2 z^2 (v - o)^2: 0 at a logit of 0; (3/4)^2 ln(3)^2 (8 - 7)^2.
  expect_numbers(two_entries().scores(Change::key), {0, std::pow(0.75 * std::log(3), 2)});
  // (1/4)^2 ln(2)^2 11^2 and (5/8)^2 ln(5)^2 5^2.
  expect_numbers(three_entries().scores(Change::key),
                 {0, std::pow(2.75 * std::log(2), 2), std::pow(3.125 * std::log(5), 2)});
}

TEST(ScoredAttention, ByKeyAndValueTogetherIsASumOfSquares) {
  // A^2 (v + z (v - o))^2: at a logit of 0 the joint score is the value score.
  expect_numbers(two_entries().scores(Change::joint), {1, std::pow(0.75 * (8 + std::log(3)), 2)});
  expect_numbers(three_entries().scores(Change::joint),
                 {1, std::pow(4 + 2.75 * std::log(2), 2), std::pow(3.125 * std::log(5), 2)});
}

TEST(ScoredAttention, ByRemovalIsWhatItChanges) {
  // Without the first entry o' = 8, without the second o' = 4; o = 7.
  expect_numbers(two_entries().scores(Change::exact), {1, 9});
  // o' = (2 * 16 + 0) / 7, 8/6, 40/3; o = 5.
  expect_numbers(three_entries().scores(Change::exact),
                 {std::pow(3.0 / 7, 2), std::pow(11.0 / 3, 2), std::pow(25.0 / 3, 2)});
}

TEST(ScoredAttention, BySlotKeepsTheWeightOfALogitOfZero) {
  // The first key is 0 already: zeroing its value gives o' = 3/4 8 = 6. Zeroing the second
  // entry gives o' = (4 + 0) / 2.
  expect_numbers(two_entries().scores(Change::slot), {1, 25});
  // o' = 4, (8 + 0) / (1 + 1 + 5), (8 + 32 + 0) / (1 + 2 + 1).
  expect_numbers(three_entries().scores(Change::slot), {1, std::pow(5 - 8.0 / 7, 2), 25});
}

TEST(ScoredAttention, IsMeasuredAfterTheProjectionOfEachHead) {
  // Head 0 projects (x, y) W = (x + y, 0, 2 y), head 1 takes x alone. A = 1/2 each,
  // v = (2, 0), (0, 4), o = (1, 2).
  Cache cache{Matrix(2, 2), matrix({{2, 0}, {0, 4}}), matrix({{1, 1}, {1, 1}}),
              matrix({{1, 0, 0}, {1, 0, 2}, {1, 0, 0}, {0, 0, 0}})};
  EXPECT_EQ(cache.scores(Change::value, 0), (std::vector<double>{1, 20}));  // (1, 0) W; (0, 2) W = (2, 0, 4)
  EXPECT_EQ(cache.scores(Change::value, 1), (std::vector<double>{1, 0}));
  // Removed: o' - o = (-1, 2) or (1, -2), and (-1, 2) W = (1, 0, 4).
  EXPECT_EQ(cache.scores(Change::exact, 0), (std::vector<double>{17, 17}));
  EXPECT_EQ(cache.scores(Change::exact, 1), (std::vector<double>{1, 1}));
}

TEST(ScoredAttention, CannotRemoveTheOnlyEntry) {
  for (const double key : {0.0, 5.0, -5.0, 800.0, -800.0}) {
    const Cache cache{matrix({{key}}), matrix({{3}}), matrix({{1}}), {}};
    EXPECT_EQ(cache.scores(Change::exact), std::vector<double>{kInfinity}) << key;
    EXPECT_EQ(cache.scores(Change::value), std::vector<double>{9}) << key;
    EXPECT_EQ(cache.scores(Change::key), std::vector<double>{0}) << "v - o is 0";
    EXPECT_EQ(cache.scores(Change::joint), std::vector<double>{9}) << key;
    EXPECT_EQ(cache.scores(Change::slot), std::vector<double>{9})
        << "the slot takes all and gives 0; " << key;
    EXPECT_EQ(cache.scored(Change::exact).output(0, 0), 3);
    EXPECT_EQ(cache.scored(Change::exact).weights(0, 0), 1);
  }
}

TEST(ScoredAttention, OfNoEntriesIsEmptyAndItsOutputZero) {
  for (const Change change : kChanges) {
    const ScoredAttention attention =
        Cache{Matrix(0, 2), Matrix(0, 2), matrix({{1, 2}, {3, 4}}), {}}.scored(change);
    EXPECT_EQ(list(attention.output.numbers()), std::vector<double>(4, 0.0)) << name(change);
    EXPECT_EQ(attention.output.rows(), 2);
    EXPECT_EQ(attention.scores.cols(), 0);
    EXPECT_EQ(attention.weights.cols(), 0);
  }
}

TEST(ScoredAttention, RefusesWhatIsNoNumber) {
  Cache cache = two_entries();
  cache.values(1, 0) = 1e200;
  for (const Change change : kChanges) EXPECT_THROW(cache.scored(change), NonFinite) << name(change);
  cache = two_entries();
  cache.keys(0, 0) = 1e200;
  cache.queries(0, 0) = 1e200;
  for (const Change change : kChanges) EXPECT_THROW(cache.scored(change), NonFinite) << name(change);
  cache = two_entries();
  cache.queries(0, 0) = std::numeric_limits<double>::quiet_NaN();
  for (const Change change : kChanges) EXPECT_THROW(cache.scored(change), NonFinite) << name(change);
}

TEST(ScoredAttention, RefusesQueriesOfAnotherWidth) {
  Cache cache = two_entries();
  cache.queries = matrix({{1, 2}});
  for (const Change change : kChanges) EXPECT_THROW(cache.scored(change), ShapeMismatch) << name(change);
}

TEST(ValueSpace, NamesRowsOfAnotherWidth) {
  const ValueSpace space(Space::projected, matrix({{1}, {2}}));
  EXPECT_EQ(message_of<ShapeMismatch>([&] { space.gram_product(Matrix(1, 3)); }),
            "columns of the rows is 3 but head_dim is 2");
  EXPECT_EQ(message_of<ShapeMismatch>([&] { space.squared_norms(Matrix(1, 3)); }),
            "columns of the rows is 3 but head_dim is 2");
}

TEST(ValueSpace, MeasuresLengthsAndInnerProducts) {
  // W = (3, 4): x W = 3 x, 4 x, so x . y = 25 x y.
  const ValueSpace own, projected(Space::projected, matrix({{3, 4}}));
  EXPECT_TRUE(own.is_head());
  EXPECT_FALSE(projected.is_head());
  EXPECT_EQ(own.squared_norms(matrix({{2}, {-1}})), (std::vector<double>{4, 1}));
  EXPECT_EQ(projected.squared_norms(matrix({{2}, {-1}})), (std::vector<double>{100, 25}));
  EXPECT_EQ(projected.squared_norm(std::vector<double>{2}), 100);
  EXPECT_EQ(projected.gram_product(matrix({{2}}))(0, 0), 50);
  EXPECT_EQ(own.gram_product(matrix({{2}}))(0, 0), 2);
  EXPECT_TRUE(own.squared_norms(Matrix(0, 3)).empty());
}

// ---- against 50 digits

struct NamedCache {
  std::string name;
  Cache cache;
};

// The first dimension determines the logits; small random numbers in the others perturb them.
Cache with_logits(const std::vector<double>& logits, uint64_t seed) {
  Random random(seed);
  const auto entries = std::ssize(logits);
  Cache cache{random.matrix(entries, 3, 0.1), random.matrix(entries, 3), random.matrix(2, 3), {}};
  for (int64_t j = 0; j < entries; ++j) {
    cache.keys(j, 0) = logits[j];
    const double length = random.uniform(0.1, 2);
    for (double& entry : cache.values.row(j)) entry *= length;
  }
  for (int64_t h = 0; h < 2; ++h) cache.queries(h, 0) = 1;
  return cache;
}

std::vector<NamedCache> regimes() {
  std::vector<NamedCache> result;
  std::vector<double> flat(19, 0.0);
  result.push_back({"random", with_logits(flat, 1)});
  result.back().cache.keys = Random(2).matrix(19, 3, 1.5);
  for (const double gap : {2.0, 38.0, 60.0, 800.0}) {
    std::vector<double> peaked = flat;
    peaked[7] = gap;
    result.push_back({"peaked by " + std::to_string(gap), with_logits(peaked, 3)});
    for (double& logit : peaked) logit -= gap;
    result.push_back({"one entry at 0, others below by " + std::to_string(gap), with_logits(peaked, 4)});
  }
  std::vector<double> pair = flat;
  pair[3] = pair[11] = 300;
  result.push_back({"two leads", with_logits(pair, 5)});
  result.push_back({"tied", with_logits(flat, 6)});
  for (int64_t j = 0; j < 19; ++j) result.back().cache.keys(j, 1) = result.back().cache.keys(j, 2) = 0;
  std::vector<double> sink = flat;
  sink[0] = 8;
  result.push_back({"sink", with_logits(sink, 7)});
  for (double& entry : result.back().cache.values.row(0)) entry *= 1e-3;
  result.push_back({"equal values", with_logits(sink, 8)});
  for (int64_t j = 1; j < 19; ++j) {
    std::ranges::copy(result.back().cache.values.row(0), result.back().cache.values.row(j).begin());
  }
  std::vector<double> huge = flat;
  for (size_t j = 0; j < huge.size(); ++j) huge[j] = j % 2 == 0 ? 1e4 : -1e4;
  result.push_back({"huge", with_logits(huge, 9)});
  result.push_back({"deep", with_logits(std::vector<double>(19, -1e4), 10)});
  return result;
}

TEST(ScoredAttentionOracle, IsMetInEveryRegimeAndSpace) {
  Random random(11);
  for (auto& [regime, cache] : regimes()) {
    for (const int64_t model_dim : {0, 2, 5}) {  // 2: W maps some changes to 0
      cache.output_projection = model_dim == 0 ? Matrix() : random.matrix(6, model_dim);
      for (const Change change : kChanges) {
        SCOPED_TRACE(regime + ", " + name(change) + ", model_dim " + std::to_string(model_dim));
        expect_definition(cache, change);
      }
    }
  }
}

TEST(ScoredAttentionOracle, IsMetForOneDimensionAndManyEntries) {
  Random random(12);
  for (const int64_t entries : {2, 3, 17, 300}) {  // 300: more than one block of a matrix product
    const Cache cache{random.matrix(entries, 1, 3), random.matrix(entries, 1), random.matrix(1, 1), {}, 0.5};
    for (const Change change : {Change::value, Change::key, Change::joint}) expect_definition(cache, change);
    if (entries == 300) continue;  // too slow: each deletion takes a softmax in 50 digits
    for (const Change change : {Change::exact, Change::slot}) expect_definition(cache, change);
  }
}

TEST(ScoredAttentionOracle, ByRemovalTellsChangesThatThePrintedFormLoses) {
  // 1 - A is below u: (A / (1 - A))^2 |v - o|^2 would be 0/0. o = v_0, o' = 7/2.
  for (const double gap : {38.0, 60.0, 800.0}) {
    const Cache cache{matrix({{gap}, {0}, {0}}), matrix({{1}, {3}, {4}}), matrix({{1}}), {}};
    EXPECT_NEAR(cache.scores(Change::exact)[0], 6.25, 1e-13) << gap;
  }
}

// ---- over a window

// The definition, summed over the queries that see the entry.
Measured window_change(const RandomLayer& layer, int64_t window, Change change, Space space, int64_t head,
                       int64_t entry) {
  const LayerView view = layer.view();
  const int64_t g = view.shape.kv_head_of(head);
  Measured sum;
  for (int64_t i = view.window_queries() - window; i < view.window_queries(); ++i) {
    const int64_t seen = layer.tokens - view.window_queries() + i + 1;
    if (entry >= seen) continue;
    const auto keys = view.keys.slice(g).middle_rows(0, seen),
               values = view.values.slice(g).middle_rows(0, seen);
    sum += oracle::change(change, exact_logits(view.queries.slice(head).row(i), keys, view.scale), values,
                          space == Space::head ? MatrixView() : view.head_projection(head), entry);
  }
  return sum;
}

TEST(WindowScoresOracle, IsMetForEveryChangeSpaceAndGroupSize) {
  for (const int64_t kv_heads : {1, 2}) {
    const RandomLayer layer({2, kv_heads, 3, 4}, 14, 6, 0, static_cast<uint64_t>(20 + kv_heads));
    for (const int64_t window : {1, 6}) {
      for (const Change change : kChanges) {
        for (const Space space : {Space::head, Space::projected}) {
          const Matrix scores = window_scores(layer.view(), window, change, space);
          ASSERT_EQ(scores.rows(), 2);
          ASSERT_EQ(scores.cols(), 14);
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t j = 0; j < 14; ++j) {
              EXPECT_TRUE(near(scores(h, j), window_change(layer, window, change, space, h, j)))
                  << name(change) << ", window " << window << ", head " << h << ", entry " << j;
            }
          }
        }
      }
    }
  }
}

// Each query's scores cover the entries that it sees, and are summed; more queries, heads and tokens than
// are processed at a time.
TEST(WindowScores, AreTheSumOverQueriesOfWhatEachSees) {
  const RandomLayer layer({12, 2, 5, 6}, 600, 40, 0, 23);
  const LayerView view = layer.view();
  for (const Change change : kChanges) {
    for (const Space space : {Space::head, Space::projected}) {
      const Matrix scores = window_scores(view, 40, change, space);
      for (const int64_t h : {0, 5, 6, 11}) {
        const int64_t g = h / 6;
        std::vector<double> sum(600);
        for (int64_t i = 0; i < 40; ++i) {
          const int64_t seen = 560 + i + 1;
          const MatrixView keys = view.keys.slice(g).middle_rows(0, seen),
                           values = view.values.slice(g).middle_rows(0, seen);
          const std::vector<ValueSpace> spaces{ValueSpace(space, view.head_projection(h))};
          const Matrix norms = test::matrix({spaces[0].squared_norms(values)});
          const Matrix one = scored_attention(change, view.queries.slice(h).middle_rows(i, 1),
                                              {keys, values, norms, spaces}, view.scale)
                                 .scores;
          for (int64_t j = 0; j < seen; ++j) sum[j] += one(0, j);
        }
        for (int64_t j = 0; j < 600; ++j) {
          const double expected = sum[j];
          EXPECT_NEAR(scores(h, j), expected, 1e-9 * expected + 1e-300) << name(change) << " " << j;
        }
      }
    }
  }
}

TEST(WindowScores, AreInfiniteByRemovalWhereAQuerySeesOneEntryAlone) {
  const RandomLayer layer({2, 1, 3, 4}, 5, 5, 0, 24);
  const Matrix scores = window_scores(layer.view(), 5, Change::exact, Space::head);
  for (int64_t h = 0; h < 2; ++h) {
    EXPECT_EQ(scores(h, 0), kInfinity) << "the first query sees nothing else";
    for (int64_t j = 1; j < 5; ++j) EXPECT_LT(scores(h, j), kInfinity);
  }
  EXPECT_LT(window_scores(layer.view(), 4, Change::exact, Space::head)(0, 0), kInfinity);
}

TEST(WindowScores, NameAWindowThatIsNotRecorded) {
  const RandomLayer layer({1, 1, 2, 2}, 6, 3, 0, 25);
  for (const int64_t window : {4, 0, -1}) {
    EXPECT_EQ(
        message_of<ShapeMismatch>([&] { window_scores(layer.view(), window, Change::joint, Space::head); }),
        "window is " + std::to_string(window) + " but 3 prompt queries are recorded");
  }
}

TEST(WindowScores, RefuseWhatIsNoNumber) {
  RandomLayer layer({1, 1, 2, 2}, 6, 3, 0, 26);
  layer.all_values.slice(0)(2, 1) = 1e200;
  for (const Change change : kChanges) {
    for (const Space space : {Space::head, Space::projected}) {
      EXPECT_THROW(window_scores(layer.view(), 3, change, space), NonFinite) << name(change);
    }
  }
}

TEST(WindowScores, HaveTheSameBitsForAnyNumberOfThreads) {
  const RandomLayer layer({16, 2, 8, 12}, 700, 40, 0, 27);
  for (const Change change : kChanges) {
    for (const Space space : {Space::head, Space::projected}) {
      const auto scores = [&] { return list(window_scores(layer.view(), 40, change, space).numbers()); };
      const std::vector<double> alone = test::with_threads(1, scores);
      for (const int threads : {2, 3}) {
        EXPECT_EQ(test::with_threads(threads, scores), alone)
            << name(change) << ", " << threads << " threads";
      }
    }
  }
}

// Equal tokens tie exactly, at the ends and in the middle of vectors and of product blocks.
TEST(WindowScores, AreBitEqualForEqualTokensWhereverTheyStand) {
  const std::vector<int64_t> places{0, 1, 6, 7, 8, 15, 16, 255, 256, 300, 511, 512, 690};
  for (const int64_t head_dim : {1, 7, 64}) {
    for (const int64_t tokens : {698, 703}) {
      RandomLayer layer({2, 1, head_dim, 5}, tokens, 7, 0, 28);
      for (Tensor* tensor : {&layer.all_keys, &layer.all_values}) {
        const MutableMatrixView rows = tensor->slice(0);
        for (const int64_t place : places) std::ranges::copy(rows.row(0), rows.row(place).begin());
      }
      for (const Change change : kChanges) {
        for (const Space space : {Space::head, Space::projected}) {
          const Matrix scores = window_scores(layer.view(), 7, change, space);
          for (const int64_t place : places) {
            ASSERT_EQ(scores(0, place), scores(0, 0)) << name(change) << " " << head_dim << " " << place;
            ASSERT_EQ(scores(1, place), scores(1, 0)) << name(change) << " " << head_dim << " " << place;
          }
        }
      }
    }
  }
}

TEST(GroupSum, AddsQueryHeadsThatShareAKvHead) {
  const Matrix sum = group_sum(matrix({{1, 2}, {3, 6}, {0, 5}, {8, 5}}), 2);
  EXPECT_EQ(sum.rows(), 2);
  EXPECT_EQ(list(sum.numbers()), (std::vector<double>{4, 8, 8, 10}));
  EXPECT_EQ(list(group_sum(matrix({{1, kInfinity}, {3, 6}}), 2).numbers()),
            (std::vector<double>{4, kInfinity}));
  EXPECT_EQ(group_sum(Matrix(4, 0), 2).rows(), 2) << "no entries";
}

TEST(GroupSum, NamesGroupsThatDoNotFit) {
  EXPECT_EQ(message_of<ShapeMismatch>([] { group_sum(Matrix(3, 1), 2); }),
            "3 query heads cannot be shared out in groups of 2");
  EXPECT_EQ(message_of<ShapeMismatch>([] { group_sum(Matrix(3, 1), 0); }),
            "3 query heads cannot be shared out in groups of 0");
}

// ---- properties

struct Drawn {
  Cache cache;
  double shift = 0;
};

// Adds a dimension in which all keys are 1 and the query is the shift, so that the shift
// is added to every logit.
Cache shifted(const Cache& cache, double shift) {
  Cache result = cache;
  const int64_t entries = cache.keys.rows(), head_dim = cache.keys.cols();
  result.keys = result.values = Matrix(entries, head_dim + 1);
  result.queries = Matrix(cache.queries.rows(), head_dim + 1);
  for (int64_t j = 0; j < entries; ++j) {
    std::ranges::copy(cache.keys.row(j), result.keys.row(j).begin());
    std::ranges::copy(cache.values.row(j), result.values.row(j).begin());
    result.keys(j, head_dim) = 1;
  }
  for (int64_t h = 0; h < cache.queries.rows(); ++h) {
    std::ranges::copy(cache.queries.row(h), result.queries.row(h).begin());
    result.queries(h, head_dim) = shift;
  }
  return result;
}

// Logits and values of few bits, so that logits and their sums with the shift are exact.
Drawn drawn_cache() {
  const std::vector<double> logits = numbers(*test::dyadics(2, 12, 40));
  const auto entries = std::ssize(logits);
  Drawn drawn{{Matrix(entries, 1), Matrix(entries, 1), matrix({{1}}), {}}, (*test::dyadic(30)).value};
  const std::vector<double> values = numbers(*test::dyadics(entries, entries, 4));
  for (int64_t j = 0; j < entries; ++j) {
    drawn.cache.keys(j, 0) = logits[j];
    drawn.cache.values(j, 0) = values[j];
  }
  return drawn;
}

RC_GTEST_PROP(ScoredAttentionProperty, IsTheDefinitionAndNeverNegative, ()) {
  const Cache cache = drawn_cache().cache;
  const oracle::Reals logits = exact_logits(cache.queries.row(0), cache.keys, 1);
  RC_CLASSIFY(std::ranges::any_of(oracle::softmax(logits), [](const auto& a) { return a > 0.999; }),
              "nearly all on one");
  for (const Change change : kChanges) {
    const std::vector<double> scores = cache.scores(change);
    for (size_t j = 0; j < scores.size(); ++j) {
      RC_ASSERT(scores[j] >= 0);
      RC_ASSERT(
          bool(near(scores[j], oracle::change(change, logits, cache.values, {}, static_cast<int64_t>(j)))));
    }
  }
}

RC_GTEST_PROP(ScoredAttentionProperty, ByRemovalAndByValueDoNotChangeUnderAShiftOfAllLogits, ()) {
  const auto [cache, shift] = drawn_cache();
  const oracle::Reals logits = exact_logits(cache.queries.row(0), cache.keys, 1);
  RC_CLASSIFY(shift == 0, "no shift");
  for (const Change change : {Change::exact, Change::value}) {
    const std::vector<double> scores = shifted(cache, shift).scores(change);
    for (size_t j = 0; j < scores.size(); ++j) {
      RC_ASSERT(
          bool(near(scores[j], oracle::change(change, logits, cache.values, {}, static_cast<int64_t>(j)))));
    }
  }
}

// At a logit of 0 the key score is 0 and the joint score is the value score; after a shift by 1 they are A^2
// |v - o|^2 and A^2 |2 v - o|^2.
TEST(ScoredAttention, ByKeyAndJointChangeUnderAShiftThoughTheOutputDoesNot) {
  const Cache before = two_entries(), after = shifted(before, 1);
  EXPECT_NEAR(after.scored(Change::key).output(0, 0), 7, 1e-13);
  EXPECT_EQ(before.scores(Change::key)[0], 0);
  EXPECT_NEAR(after.scores(Change::key)[0], 9.0 / 16, 1e-13);
  EXPECT_NEAR(before.scores(Change::joint)[0], 1, 1e-13);
  EXPECT_NEAR(after.scores(Change::joint)[0], 1.0 / 16, 1e-13);
  EXPECT_NEAR(after.scores(Change::slot)[0], std::pow(7 - 24.0 * std::exp(1) / (3 * std::exp(1) + 1), 2),
              1e-12)
      << "the slot's logit of 0 is not shifted";
}

// With a square W, scores of the values V W in their own space equal those of V in projected
// space, within both tolerances.
RC_GTEST_PROP(ScoredAttentionProperty, InTheProjectedSpaceIsThatOfProjectedValues, ()) {
  Random random(static_cast<uint64_t>(*test::integer(0, 1 << 30)));
  const int64_t entries = *test::integer(2, 12), head_dim = *test::integer(1, 4);
  Cache cache{random.matrix(entries, head_dim, 2), random.matrix(entries, head_dim),
              random.matrix(1, head_dim), random.matrix(head_dim, head_dim)};
  Cache own = cache;
  for (int64_t j = 0; j < entries; ++j) {
    for (int64_t m = 0; m < head_dim; ++m) {
      own.values(j, m) = 0;
      for (int64_t c = 0; c < head_dim; ++c)
        own.values(j, m) += cache.values(j, c) * cache.output_projection(c, m);
    }
  }
  own.output_projection = Matrix();
  const oracle::Reals logits = exact_logits(cache.queries.row(0), cache.keys, 1);
  for (const Change change : kChanges) {
    const std::vector<double> scores = own.scores(change), projected = cache.scores(change);
    for (size_t j = 0; j < scores.size(); ++j) {
      const Measured expected =
          oracle::change(change, logits, cache.values, cache.output_projection, static_cast<int64_t>(j));
      RC_ASSERT(bool(near(scores[j], expected)));
      RC_ASSERT(bool(near(projected[j], expected)));
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::obcache_test
