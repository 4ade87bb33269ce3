// Scores of entries with several votes, and evictions from a cache of such entries.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "support/merging_cases.hpp"
#include "support/voted_cache.hpp"

namespace kvbound::reference::obcache_votes_test {
namespace {

using namespace test;
using oracle::exact_logits;
using oracle::Measured;
using oracle::near;
using oracle::Real;
using oracle::Reals;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

using Numbers = std::vector<double>;

constexpr Change kChanges[] = {Change::value, Change::key, Change::joint, Change::exact};

// The first dimension determines the logits; small random numbers in the others perturb them.
VotedCache with_logits(const Numbers& logits, const Numbers& votes, uint64_t seed) {
  Random random(seed);
  const auto entries = std::ssize(logits);
  VotedCache cache{
      random.matrix(entries, 3, 0.1), random.matrix(entries, 3), random.matrix(2, 3), {}, 1, votes};
  for (int64_t j = 0; j < entries; ++j) cache.keys(j, 0) = logits[j];
  for (int64_t h = 0; h < 2; ++h) cache.queries(h, 0) = 1;
  return cache;
}

TEST(ScoredAttentionWithVotes, MeetsItsDefinition) {
  Random random(1);
  Numbers flat(17, 0.0), few, many(17, 1.0), peaked = flat, huge = flat;
  for (size_t j = 0; j < flat.size(); ++j) {
    few.push_back(1 + static_cast<double>(random.index(9)));
    huge[j] = j % 2 == 0 ? 1e4 : -1e4;
  }
  many[5] = 1e6;
  for (const Numbers& votes : {few, many}) {
    for (const int64_t model_dim : {0, 2, 5}) {
      const Matrix projection = model_dim == 0 ? Matrix() : random.matrix(6, model_dim);
      const auto expect = [&](const std::string& regime, VotedCache cache) {
        SCOPED_TRACE(regime + ", votes of " + std::to_string(votes[5]) + ", model_dim " +
                     std::to_string(model_dim));
        cache.output_projection = projection;
        for (const Change change : kChanges) {
          SCOPED_TRACE("change " + std::to_string(static_cast<int>(change)));
          expect_definition(cache, change);
        }
      };
      expect("flat", with_logits(flat, votes, 2));
      expect("huge", with_logits(huge, votes, 3));
      VotedCache free = with_logits(flat, votes, 4);
      free.keys = random.matrix(17, 3, 1.5);
      expect("random", free);
      for (const double gap : {2.0, 14.0, 38.0, 800.0, -14.0}) {
        peaked[5] = gap;  // at -14 the logit cancels 10^6 votes
        expect("one apart by " + std::to_string(gap), with_logits(peaked, votes, 5));
      }
    }
  }
}

// An entry with 3 votes is three equal entries; removing it removes all three.
TEST(ScoredAttentionWithVotes, IsThatOfSoManyCopies) {
  Random random(6);
  for (const double size : {0.5, 6.0}) {
    VotedCache cache{
        random.matrix(5, 2, size), random.matrix(5, 2), random.matrix(1, 2), {}, 1, {3, 1, 4, 1, 2}};
    Matrix keys, values;
    std::vector<std::vector<int64_t>> copies(5);
    for (int64_t j = 0; j < 5; ++j) {
      for (int copy = 0; copy < cache.votes[j]; ++copy) {
        copies[j].push_back(keys.rows());
        keys.append_row(cache.keys.row(j));
        values.append_row(cache.values.row(j));
      }
    }
    const Reals logits = exact_logits(cache.queries.row(0), keys, 1);
    const Reals weights = oracle::softmax(logits);
    const ScoredAttention attention = cache.scored(Change::exact);
    for (int64_t j = 0; j < 5; ++j) {
      const std::vector<int64_t>& mine = copies[j];
      Real weight = 0;
      for (const int64_t copy : mine) weight += weights[copy];
      EXPECT_TRUE(near(attention.weights(0, j), {weight, weight}));
      Measured removed;
      for (const Measured& change : oracle::removal(logits, values, mine)) {
        removed += {change.value * change.value, change.terms * change.terms};
      }
      EXPECT_TRUE(near(attention.scores(0, j), removed)) << "entry " << j;
    }
  }
}

TEST(ScoredAttentionWithVotes, OfOneEachIsThatWithoutBitForBit) {
  Random random(7);
  VotedCache cache{random.matrix(40, 5, 2), random.matrix(40, 5), random.matrix(3, 5), {}, 1,
                   Numbers(40, 1.0)};
  VotedCache without = cache;
  without.votes.clear();
  for (const Change change : {Change::value, Change::key, Change::joint, Change::exact, Change::slot}) {
    const ScoredAttention one = cache.scored(change), other = without.scored(change);
    EXPECT_TRUE(std::ranges::equal(one.scores.numbers(), other.scores.numbers()));
    EXPECT_TRUE(std::ranges::equal(one.weights.numbers(), other.weights.numbers()));
    EXPECT_TRUE(std::ranges::equal(one.output.numbers(), other.output.numbers()));
  }
}

TEST(ScoredAttentionWithVotes, NamesVotesOfAnotherNumber) {
  VotedCache cache{Matrix(3, 2), Matrix(3, 2), Matrix(1, 2), {}, 1, {1, 2}};
  for (const Change change : kChanges) {
    EXPECT_EQ(message_of<ShapeMismatch>([&] { cache.scored(change); }),
              "votes is 2 but columns of logits is 3");
  }
}

// ---- evictions

// TOVA scores entries by the step's query alone, so that its eviction follows from the cache, including
// merged values and votes.
std::vector<double> scores_of(const Policy& policy, const RandomLayer& layer, int64_t g,
                              const RecordedCache& cache, MatrixView queries) {
  const LayerView view = layer.view();
  const int64_t group_size = layer.shape.group_size(), head_dim = layer.shape.head_dim;
  const MatrixView projection =
      view.output_projection.middle_rows(g * group_size * head_dim, group_size * head_dim);
  const Matrix values = cache.values(), keys = cache.keys();
  const std::vector<double> votes = cache.votes();
  Matrix scores;
  if (const std::optional<Change> change = rules_of(policy.score).change) {
    const std::vector<ValueSpace> spaces = value_spaces(rules_of(policy.score).space, projection, group_size);
    const Matrix norms = squared_norms(values, spaces);
    scores =
        group_sum(scored_attention(*change, queries, {keys, values, norms, spaces, votes}, view.scale).scores,
                  group_size);
  } else {
    const Matrix weights = attention(queries, keys, values, view.scale, votes).weights;
    const auto& critical = std::get<Critical>(policy.selection);
    Matrix norms;
    for (int64_t h = 0; h < group_size; ++h) {
      norms.append_row(
          projected_value_norms(values, projection.middle_rows(h * head_dim, head_dim), critical.norm));
    }
    return stage_two_scores(weights, norms, critical.epsilon, critical.gqa);
  }
  return {scores.row(0).begin(), scores.row(0).end()};
}

TEST(EvictionOfMergedEntries, GoesByTheirVotesAndMergedValues) {
  Critical critical;
  critical.alpha = Decimal{0, 0};  // stage one is empty
  const std::vector<Policy> policies{{Tova{2}, ObcacheValue{}, {}, {}, {}},
                                     {Tova{2}, ObcacheValue{{Space::projected}}, {}, {}, {}},
                                     {Tova{2}, ObcacheKey{}, {}, {}, {}},
                                     {Tova{2}, ObcacheJoint{}, {}, {}, {}},
                                     {Tova{2}, ExactRemoval{{Space::projected}}, {}, {}, {}},
                                     {Tova{2}, {}, critical, {}, {}}};
  const RandomLayer layer({4, 2, 6, 9}, kTokens, kRecorded, 20, 90);
  int merges = 0;
  for (Policy policy : policies) {
    for (const NamedMerge& merge : targeted_merges(kMergeAll)) {
      SCOPED_TRACE(merge.name + ", score " + std::to_string(policy.score.index()));
      policy.merge = merge.merge;
      RecordedSession session(layer, policy, {10, 8});
      for (int64_t t = 0; t < 20; ++t) {
        const StepRecord record = session.step();
        for (int64_t g = 0; g < 2; ++g) {
          const int64_t index = g;
          if (record.evicted[index] < 0) continue;
          merges += record.merged_into[index] >= 0;
          const RecordedCache& cache = session.seen[index];
          const std::vector<double> scores =
              scores_of(policy, layer, g, cache, layer.step(t).queries.middle_rows(g * 2, 2));
          const Positions positions = cache.positions();
          double least = std::numeric_limits<double>::infinity(), left = least;
          for (size_t j = 0; j < positions.size(); ++j) {
            if (positions[j] < 2) continue;  // the sinks
            least = std::min(least, scores[j]);
            if (positions[j] == record.evicted[index]) left = scores[j];
          }
          // The session holds its entries in another order, so its sums are rounded differently.
          EXPECT_LE(left, least * (1 + 1e-12)) << "step " << t;
        }
      }
    }
  }
  EXPECT_GT(merges, 100);
}

}  // namespace
}  // namespace kvbound::reference::obcache_votes_test
