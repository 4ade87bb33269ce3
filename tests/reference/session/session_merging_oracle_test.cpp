// The merges of sessions against the definitions in 50 digits: every merged entry of every record that
// predicts by the current query, and the outputs that KeepKV's merges must not change.
#include <algorithm>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/merge_bounds.hpp>

#include "support/merging_cases.hpp"
#include "support/oracle.hpp"

namespace kvbound::reference::session_merging_oracle_test {
namespace {

using namespace test;
using oracle::Bounded;
using oracle::Real;
using oracle::Row;
using oracle::Rows;
using oracle::within;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

constexpr int64_t kManySteps = 7;

RandomLayer layer_of(int64_t group_size, uint64_t seed) {
  return {{kQueryHeads, kQueryHeads / group_size, 6, 9}, kTokens, kRecorded, kManySteps, seed};
}

// One merge of one KV head: its inputs.
struct Moment {
  RecordedCache before;  // the cache before the merge
  Matrix queries;        // [group_size, head_dim]
  double scale;

  Rows logits() const { return oracle::logits(queries, before.keys(), scale); }
};

KeyRule rule_of(const Merge& merge) {
  if (const auto* keep_kv = std::get_if<KeepKv>(&merge)) return {keep_kv->key, keep_kv->gqa, keep_kv->rank};
  return {MergedKey::convex, std::get<ConvexMerge>(merge).gqa, 0};
}

ClusterMembers members_of(const RecordedCache& cache, const MergeCluster& cluster) {
  ClusterMembers members;
  Positions positions{cluster.into};
  positions.insert(positions.end(), cluster.from.begin(), cluster.from.end());
  for (const int64_t position : positions) {
    const CachedEntry& entry = cache.entries.at(position);
    members.keys.append_row(entry.key);
    members.values.append_row(entry.value);
    members.votes.push_back(entry.votes);
  }
  members.log_scores = cluster.log_scores;
  return members;
}

// The logits of the cluster's members, the staying one first.
Rows scores_of(const Moment& moment, const MergeCluster& cluster) {
  const Positions positions = moment.before.positions();
  const auto column = [&](int64_t position) {
    return static_cast<size_t>(std::ranges::lower_bound(positions, position) - positions.begin());
  };
  Rows result;
  for (const Row& row : moment.logits()) {
    result.push_back({row[column(cluster.into)]});
    for (const int64_t position : cluster.from) result.back().push_back(row[column(position)]);
  }
  return result;
}

// ln D_h
Row log_denominators(const Moment& moment) {
  const std::vector<double> numbers = moment.before.votes();
  const Row votes = oracle::exactly(VectorView(numbers));
  Row result;
  for (const Row& row : moment.logits()) result.push_back(oracle::log_sum_exp(oracle::voted(votes, row)));
  return result;
}

void expect_within(VectorView actual, const Row& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(within(actual[i], expected[i])) << "at " << i;
}

// The cache after a merge by definition.
struct Merged {
  Rows keys, values;  // of the staying entries, in order of position
  Row votes;
  int clusters = 0;
  bool decided = true;
};

// The merge by definition; the record's predicted scores must agree with it. staying: the
// positions left in the cache
Merged merged_by_definition(const Moment& moment, const Merge& merge, const HeadMerge& record,
                            const Positions& staying) {
  std::map<int64_t, oracle::MergedCluster> clusters;
  Merged result;
  const Row denominators = log_denominators(moment);
  for (const MergeCluster& cluster : record.clusters) {
    const Rows scores = scores_of(moment, cluster);
    for (size_t h = 0; h < scores.size(); ++h) expect_within(cluster.log_scores.row(h), scores[h]);
    clusters[cluster.into] = oracle::merge_cluster(rule_of(merge), moment.queries, moment.scale,
                                                   members_of(moment.before, cluster), scores, denominators);
    result.decided = result.decided && clusters[cluster.into].keys.size() == 1;
    ++result.clusters;
  }
  for (const int64_t position : staying) {
    const CachedEntry& entry = moment.before.entries.at(position);
    const auto cluster = clusters.find(position);
    const bool is_merged = cluster != clusters.end();
    result.keys.push_back(!is_merged || !result.decided ? oracle::exactly(VectorView(entry.key))
                                                        : cluster->second.keys.front());
    result.values.push_back(is_merged ? cluster->second.value : oracle::exactly(VectorView(entry.value)));
    const bool votes = is_merged && std::holds_alternative<KeepKv>(merge);
    result.votes.push_back(votes ? cluster->second.votes : Bounded(entry.votes));
  }
  return result;
}

// Requires that the recorded cache after the merge equals the definition's.
void expect_definition(const Merged& expected, const RecordedCache& actual) {
  ASSERT_EQ(actual.entries.size(), expected.keys.size());
  const Matrix keys = actual.keys(), values = actual.values();
  for (size_t j = 0; j < expected.keys.size(); ++j) {
    const auto row = static_cast<int64_t>(j);
    SCOPED_TRACE("entry " + std::to_string(j));
    EXPECT_TRUE(within(actual.votes()[j], expected.votes[j]));
    expect_within(values.row(row), expected.values[j]);
    if (expected.decided) expect_within(keys.row(row), expected.keys[j]);
  }
}

// The query's exact output over a cache of doubles.
std::vector<Real> exact_output(VectorView query, const RecordedCache& cache, double scale) {
  const MatrixView one(query.data(), 1, std::ssize(query));
  const auto attention = oracle::attention(one, cache.keys(), cache.values(), scale, cache.votes());
  std::vector<Real> result;
  for (const Bounded& number : attention.output.front()) result.push_back(number.value);
  return result;
}

// Requires that the merge changes the query's output by no more than the rounding of merged entries.
// The definition itself changes it by at most 10^-35: the other of 50 digits are lost in sums and in
// nearly equal singular values.
void expect_lossless(const Moment& moment, const Merged& merged, const RecordedCache& after) {
  if (!merged.decided) return;
  for (int64_t h = 0; h < moment.queries.rows(); ++h) {
    const VectorView query = moment.queries.row(h);
    const std::vector<Real> expected = exact_output(query, moment.before, moment.scale),
                            actual = exact_output(query, after, moment.scale);
    const Row bounds = oracle::attention(query, merged.keys, merged.values, merged.votes, moment.scale);
    for (size_t c = 0; c < expected.size(); ++c) {
      EXPECT_LE(abs(bounds[c].value - expected[c]), Real("1e-35"));
      EXPECT_LE(abs(actual[c] - expected[c]), bounds[c].bound);
      EXPECT_LE(bounds[c].bound, Real("1e-9")) << "a bound that proves nothing";
    }
  }
}

RecordedCache whole_cache(const RandomLayer& layer, int64_t g, int64_t entries) {
  RecordedCache cache;
  for (int64_t i = 0; i < entries; ++i)
    cache.put(i, layer.all_keys.slice(g).row(i), layer.all_values.slice(g).row(i));
  return cache;
}

Matrix copied(MatrixView rows) {
  Matrix result;
  for (int64_t i = 0; i < rows.rows; ++i) result.append_row(rows.row(i));
  return result;
}

// Replays a policy and compares all its merges with the definition; with `lossless` also requires
// that they change no output.
class Follower {
 public:
  Follower(const RandomLayer& layer, const Policy& policy, const Positions& budgets)
      : layer_(layer), policy_(policy), session_(layer, policy, budgets) {}

  int follow(bool lossless) {
    const int64_t heads = layer_.shape.group_size();
    for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
      SCOPED_TRACE("prompt, KV head " + std::to_string(g));
      const MatrixView queries =
          layer_.all_queries.view().row_of_slices(kRecorded - 1).middle_rows(g * heads, heads);
      judge({whole_cache(layer_, g, kTokens), copied(queries), layer_.view().scale},
            session_.prompt.merges[g], session_.caches[g], lossless);
    }
    for (int64_t t = 0; t < kManySteps; ++t) {
      const StepRecord record = session_.step();
      for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
        const int64_t index = g;
        SCOPED_TRACE("step " + std::to_string(t) + ", KV head " + std::to_string(g));
        if (record.merges.empty()) continue;
        const Matrix queries = copied(layer_.step(t).queries.middle_rows(g * heads, heads));
        const Moment moment{record.rebuilt ? whole_cache(layer_, g, kTokens + t + 1) : session_.seen[index],
                            queries, layer_.view().scale};
        const Merged merged = judge(moment, record.merges[index], session_.caches[index], lossless);
        if (record.rebuilt && lossless) expect_output_of_all(moment, merged, record, g);
      }
    }
    return clusters_;
  }

 private:
  Merged judge(const Moment& moment, const HeadMerge& record, const RecordedCache& after, bool lossless) {
    const Merged merged = merged_by_definition(moment, policy_.merge, record, after.positions());
    expect_definition(merged, after);
    if (lossless) expect_lossless(moment, merged, after);
    clusters_ += merged.clusters;
    return merged;
  }

  // The output right after a rebuild equals attention over all original entries.
  void expect_output_of_all(const Moment& moment, const Merged& merged, const StepRecord& record, int64_t g) {
    if (!merged.decided) return;
    for (int64_t h = 0; h < moment.queries.rows(); ++h) {
      Row expected =
          oracle::attention(moment.queries.row(h), merged.keys, merged.values, merged.votes, moment.scale);
      const std::vector<Real> exact = exact_output(moment.queries.row(h), moment.before, moment.scale);
      for (size_t c = 0; c < exact.size(); ++c) expected[c].value = exact[c];
      EXPECT_TRUE(oracle::all_within(record.output.row(g * layer_.shape.group_size() + h), expected));
    }
  }

  const RandomLayer& layer_;
  const Policy& policy_;
  RecordedSession session_;
  int clusters_ = 0;
};

// Every method, predicting by the current query.
std::vector<NamedMerge> current_merges(const SimilarTarget& target) {
  std::vector<NamedMerge> merges;
  for (const MergeGqa gqa : {MergeGqa::joint, MergeGqa::mean}) {
    const std::string suffix = gqa == MergeGqa::joint ? ":gqa=joint" : ":gqa=mean";
    KeepKv method = with_target(keep_kv_by(MergedKey::min_norm, gqa, Prediction::current), target);
    merges.push_back({"keepkv" + suffix, method});
    method.period = 2;
    merges.push_back({"keepkv:period=2" + suffix, method});
    method.period.reset();
    method.rank = 0.05;
    method.order = MergeOrder::merge_first;
    merges.push_back({"keepkv:rank=0.05:order=merge-first" + suffix, method});
    ConvexMerge convex = with_target(ConvexMerge{}, target);
    convex.prediction.predict = Prediction::current;
    convex.gqa = gqa;
    merges.push_back({"convex" + suffix, convex});
  }
  merges.push_back({"keepkv:key=zip",
                    with_target(keep_kv_by(MergedKey::zip, MergeGqa::mean, Prediction::current), target)});
  return merges;
}

TEST(SessionMergingOracle, IsMetByEveryMergeThatPredictsByTheCurrentQuery) {
  for (const int64_t group_size : kGroupSizes) {
    const RandomLayer layer = layer_of(group_size, static_cast<uint64_t>(60 + group_size));
    for (const auto& [name, policy, always_kept] :
         merging_policies(current_merges(SimilarTarget{Decimal{3, 1}}))) {
      SCOPED_TRACE(name + ", group of " + std::to_string(group_size));
      const Positions budgets(layer.shape.kv_heads, 12);
      EXPECT_GT(Follower(layer, policy, budgets).follow(false), 0) << "or nothing was tested";
    }
  }
}

// With one query head per KV head a merge does not change the output of the query for which it was built: at
// the prompt's end, while decoding, and over all entries of a rebuilt cache.
TEST(SessionMergingOracle, KeepsTheBuildingQuerysOutputWithOneQueryHeadPerKvHead) {
  const RandomLayer layer = layer_of(1, 70);
  for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip}) {
    for (const std::optional<int64_t> period :
         {std::optional<int64_t>(), std::optional<int64_t>(1), std::optional<int64_t>(3)}) {
      KeepKv method = with_target(keep_kv_by(key, MergeGqa::mean, Prediction::current), kMergeAll);
      method.period = period;
      for (const auto& [name, policy, always_kept] : merging_policies({{"keepkv", method}})) {
        SCOPED_TRACE(name + ", key " + std::to_string(static_cast<int>(key)) + ", period " +
                     std::to_string(period.value_or(0)));
        EXPECT_GT(Follower(layer, policy, {10, 8, 12, 9}).follow(true), 0);
      }
    }
  }
}

// Without a threshold no entry is dropped, so rebuilding at every step preserves every step's output.
TEST(SessionMergingOracle, KeepsEveryOutputWithAPeriodOfOneStep) {
  const RandomLayer layer = layer_of(1, 71);
  KeepKv method = with_target(KeepKv{}, kMergeAll);  // rebuilds use the current query whatever the prediction
  method.period = 1;
  for (const auto& [name, policy, always_kept] : merging_policies({{"keepkv", method}})) {
    SCOPED_TRACE(name);
    RecordedSession session(layer, policy, {12, 12, 12, 12});
    for (int64_t t = 0; t < kManySteps; ++t) {
      const StepRecord record = session.step();
      for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
        const int64_t index = g;
        const Moment moment{whole_cache(layer, g, kTokens + t + 1),
                            copied(layer.step(t).queries.middle_rows(g, 1)), layer.view().scale};
        const Merged merged =
            merged_by_definition(moment, policy.merge, record.merges[index], session.seen[index].positions());
        Row expected =
            oracle::attention(moment.queries.row(0), merged.keys, merged.values, merged.votes, moment.scale);
        const std::vector<Real> exact = exact_output(moment.queries.row(0), moment.before, moment.scale);
        for (size_t c = 0; c < exact.size(); ++c) {
          expected[c].value = exact[c];
          EXPECT_LE(expected[c].bound, Real("1e-9"));
        }
        EXPECT_TRUE(oracle::all_within(record.output.row(g), expected)) << "step " << t;
      }
    }
  }
}

// Queries of zero attend equally to all, before and after merges: votes and vote-weighted means preserve the
// outputs of all queries, not only of the one for which a merge was built.
TEST(SessionMergingOracle, KeepsEveryOutputOfQueriesThatPayAllAlike) {
  for (const int64_t group_size : {1, 2}) {
    RandomLayer layer = layer_of(group_size, 72);
    std::ranges::fill(layer.all_queries.numbers(), 0.0);
    for (const MergedKey key : {MergedKey::min_norm, MergedKey::zip, MergedKey::convex}) {
      const KeepKv method = with_target(keep_kv_by(key, MergeGqa::mean, Prediction::current), kMergeAll);
      for (const auto& [name, policy, always_kept] : merging_policies({{"keepkv", method}})) {
        SCOPED_TRACE(name + ", key " + std::to_string(static_cast<int>(key)));
        RecordedSession session(layer, policy, Positions(layer.shape.kv_heads, 12));
        for (int64_t t = 0; t < kManySteps; ++t) {
          const StepRecord record = session.step();
          for (int64_t h = 0; h < kQueryHeads; ++h) {
            const MatrixView values = layer.values(h / group_size, t);
            for (int64_t c = 0; c < values.cols; ++c) {
              double mean = 0, size = 0;
              for (int64_t i = 0; i < values.rows; ++i) {
                mean += values(i, c) / static_cast<double>(values.rows);
                size += std::abs(values(i, c));
              }
              // Each value undergoes a weighted mean per merge, at most one per step, and the
              // output's mean: 37 terms each.
              EXPECT_NEAR(record.output(h, c), mean,
                          static_cast<double>((kManySteps + 2) * 40) * 0x1p-53 * size);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::session_merging_oracle_test
