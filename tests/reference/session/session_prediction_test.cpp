// The scores by which sessions merge that predict by moving averages: those of
// reference/merging/score_ema.hpp, updated in the order that the session documents.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/merging/keep_kv.hpp>
#include <kvbound/reference/merging/score_ema.hpp>

#include "support/merging_cases.hpp"

namespace kvbound::reference::session_prediction_test {
namespace {

using namespace test;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

constexpr int64_t kManySteps = 10;

// One KV head's averages, updated beside a session: a step appends the new entry and observes the query's
// scores over the cache; an evicted entry's average goes into the entry that it is merged into.
class Averages {
 public:
  Averages(const RandomLayer& layer, int64_t kv_head, const PredictedScores& options)
      : layer_(layer), kv_head_(kv_head), options_(options) {}

  void begin(const HeadMerge& merge, const Positions& kept) {
    const ScoreEma whole = prompt_ema(layer_.view(), kv_head_, options_);
    averages_ = whole.of(kept);
    positions_ = kept;
    for (const MergeCluster& cluster : merge.clusters) {
      std::vector<double> votes(1 + cluster.from.size(), 1.0);
      for (int64_t h = 0; h < cluster.log_scores.rows(); ++h) {
        expect_predicted(cluster, h, 0, whole.log_predicted(h, cluster.into, kTokens));
        for (size_t j = 0; j < cluster.from.size(); ++j) {
          expect_predicted(cluster, h, static_cast<int64_t>(j) + 1,
                           whole.log_predicted(h, cluster.from[j], kTokens));
        }
      }
      replace(cluster, votes, kTokens);
    }
  }

  void step(int64_t t, const StepRecord& record, const RecordedCache& seen) {
    if (record.rebuilt) {
      averages_ = ScoreEma(options_, layer_.shape.group_size());
      positions_ = seen.positions();
      for (size_t j = 0; j < positions_.size(); ++j) averages_.append();
    } else {
      averages_.append();
      positions_.push_back(kTokens + t);
    }
    observe(t, seen);
    if (record.evicted.empty() || record.evicted[kv_head_] < 0) return;
    const int64_t left = record.evicted[kv_head_];
    for (const MergeCluster& cluster : record.merges[kv_head_].clusters) {
      for (int64_t h = 0; h < cluster.log_scores.rows(); ++h) {
        expect_predicted(cluster, h, 0, averages_.log_predicted(h, entry(cluster.into), kTokens + t + 1));
        expect_predicted(cluster, h, 1, averages_.log_predicted(h, entry(left), kTokens + t + 1));
      }
      const std::vector<double> votes{seen.entries.at(cluster.into).votes, seen.entries.at(left).votes};
      replace(cluster, votes, kTokens + t + 1);
      ++merges;
    }
    averages_.remove(entry(left));
    positions_[entry(left)] = positions_.back();
    positions_.pop_back();
  }

  int merges = 0;  // while decoding

 private:
  int64_t entry(int64_t position) const {
    return std::ranges::find(positions_, position) - positions_.begin();
  }

  // Entries are in another order here, so that sums are rounded differently: (head_dim + entries) u of logits
  // below 20 per step, and as much again for each of at most 10 merges.
  static void expect_predicted(const MergeCluster& cluster, int64_t h, int64_t member, double predicted) {
    EXPECT_NEAR(cluster.log_scores(h, member), predicted, 11 * 48 * 0x1p-53 * 20) << "member " << member;
  }

  void replace(const MergeCluster& cluster, const std::vector<double>& votes, int64_t tokens) {
    std::vector<double> scores;
    for (int64_t h = 0; h < cluster.log_scores.rows(); ++h) {
      scores.push_back(log_mean_score(votes, cluster.log_scores.row(h)));
    }
    averages_.replace(entry(cluster.into), scores, tokens);
  }

  void observe(int64_t t, const RecordedCache& seen) {
    const int64_t heads = layer_.shape.group_size();
    Matrix keys;
    std::vector<double> votes;
    for (const int64_t position : positions_) {
      keys.append_row(seen.entries.at(position).key);
      votes.push_back(seen.entries.at(position).votes);
    }
    const Matrix logits = attention_logits(layer_.step(t).queries.middle_rows(kv_head_ * heads, heads), keys,
                                           layer_.view().scale);
    averages_.observe_logits(logits, votes);
  }

  const RandomLayer& layer_;
  int64_t kv_head_;
  PredictedScores options_;
  ScoreEma averages_;
  Positions positions_;
};

std::vector<PredictedScores> all_averages() {
  std::vector<PredictedScores> result;
  for (const ScoreKind scores : {ScoreKind::attention, ScoreKind::raw}) {
    for (const Normalisation normalisation : {Normalisation::exact, Normalisation::paper}) {
      for (const double ema : {0.0, 0.6, 0.9})
        result.push_back({Prediction::ema, ema, scores, normalisation});
    }
  }
  return result;
}

TEST(SessionPrediction, IsTheAverageOfWhatQueriesGave) {
  for (const int64_t group_size : {1, 2}) {
    const RandomLayer layer({kQueryHeads, kQueryHeads / group_size, 6, 9}, kTokens, kRecorded, kManySteps,
                            80);
    for (const PredictedScores& options : all_averages()) {
      KeepKv method = with_target(KeepKv{}, SimilarTarget{Decimal{1, 1}});
      method.prediction = options;
      KeepKv periodic = method;
      periodic.period = 4;
      ConvexMerge convex = with_target(ConvexMerge{}, SimilarTarget{Decimal{1, 1}});
      convex.prediction = options;
      const std::vector<NamedMerge> merges{
          {"keepkv", method}, {"keepkv:period=4", periodic}, {"convex", convex}};
      for (const auto& [name, policy, always_kept] : merging_policies(merges)) {
        SCOPED_TRACE(name + ", ema " + std::to_string(options.ema) + ", scores " +
                     std::to_string(static_cast<int>(options.scores)) + ", normalisation " +
                     std::to_string(static_cast<int>(options.normalisation)));
        RecordedSession session(layer, policy, Positions(layer.shape.kv_heads, 12));
        std::vector<Averages> averages;
        for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
          const int64_t index = g;
          averages.emplace_back(layer, g, options);
          averages.back().begin(session.prompt.merges[index], session.prompt.kept[index]);
          EXPECT_FALSE(session.prompt.merges[index].clusters.empty());
        }
        int merged = 0;
        for (int64_t t = 0; t < kManySteps; ++t) {
          const StepRecord record = session.step();
          for (size_t g = 0; g < averages.size(); ++g) averages[g].step(t, record, session.seen[g]);
        }
        for (const Averages& one : averages) merged += one.merges;
        EXPECT_GT(merged, evicts(policy.host) ? 0 : -1) << "or nothing was tested";
      }
    }
  }
}

}  // namespace
}  // namespace kvbound::reference::session_prediction_test
