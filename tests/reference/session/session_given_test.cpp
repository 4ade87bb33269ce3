// The host `given`: kept sets and scores that were computed elsewhere.
#include <algorithm>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/given_layer.hpp>
#include <kvbound/reference/session/ranking.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/session_cases.hpp"

namespace kvbound::reference::session_given_test {
namespace {

using namespace test;

Given host_of(GivenLayer layer, int64_t window = kHost.window) {
  return {"a.safetensors", window, std::make_shared<const GivenLayer>(std::move(layer))};
}

// The scores of kHost, and worse ones of the window's entries, which are always kept.
GivenLayer scores_of_host(const RandomLayer& layer, bool with_heads = true) {
  LayerScores known(nullptr);
  const Ranking ranking = rank(layer.view(), kTopK, known);
  const auto padded = [&](const Matrix& scores) {
    Matrix all(scores.rows(), layer.tokens);
    for (int64_t r = 0; r < scores.rows(); ++r) {
      std::ranges::fill(all.row(r), -100);
      std::ranges::copy(scores.row(r), all.row(r).begin());
    }
    return all;
  };
  return {.always_kept = range(layer.tokens - kHost.window, layer.tokens),
          .score = padded(ranking.scores),
          .head_score = with_heads ? padded(ranking.head_scores) : Matrix()};
}

std::vector<StepRecord> steps_of(Session& session, const RandomLayer& layer) {
  std::vector<StepRecord> records;
  for (int64_t t = 0; t < kSteps; ++t) records.push_back(session.step(layer.step(t)));
  return records;
}

void expect_equal(const MatrixView& a, const MatrixView& b, const char* what) {
  ASSERT_EQ(a.rows, b.rows) << what;
  for (int64_t r = 0; r < a.rows; ++r) EXPECT_TRUE(std::ranges::equal(a.row(r), b.row(r))) << what;
}

// Expects that a policy's host and `given` give the same, bit by bit.
void expect_same(const RandomLayer& layer, const Policy& policy, const Given& given,
                 const Positions& budgets) {
  Policy other = policy;
  other.host = given;
  const auto own_session = make_session(), session = make_session();
  const PromptRecord own = own_session->compress(layer.view(), policy, budgets),
                     record = session->compress(layer.view(), other, budgets);
  EXPECT_EQ(record.kept, own.kept);
  EXPECT_EQ(record.stage_one, own.stage_one);
  if (!given.layer->keeps()) {
    EXPECT_EQ(record.score_positions, own.score_positions);
    expect_equal(record.score, own.score, "score");
  }
  ASSERT_EQ(record.stage_two_score.has_value(), own.stage_two_score.has_value());
  if (own.stage_two_score) expect_equal(*record.stage_two_score, *own.stage_two_score, "stage_two_score");
  ASSERT_EQ(record.merges.size(), own.merges.size());
  for (size_t g = 0; g < own.merges.size(); ++g) {
    EXPECT_EQ(record.merges[g].votes, own.merges[g].votes);
    EXPECT_EQ(record.merges[g].target_of, own.merges[g].target_of);
    expect_equal(record.merges[g].keys, own.merges[g].keys, "merged keys");
  }
  const std::vector<StepRecord> own_steps = steps_of(*own_session, layer), steps = steps_of(*session, layer);
  for (int64_t t = 0; t < kSteps; ++t) {
    EXPECT_EQ(steps[t].evicted, given.layer->evict ? own_steps[t].evicted : Positions());
    expect_equal(steps[t].output, own_steps[t].output, "output");
  }
}

TEST(GivenScores, OfAnotherHostSelectAsThatHost) {
  for (const int64_t group_size : kGroupSizes) {
    const RandomLayer layer = random_layer(group_size, 11);
    const Positions budgets = different_budgets(layer.shape.kv_heads);
    for (Policy policy : all_policies()) {
      expect_same(layer, policy, host_of(scores_of_host(layer)), budgets);
      policy.allocation = AdaKv{};
      expect_same(layer, policy, host_of(scores_of_host(layer)), budgets);
    }
  }
}

TEST(GivenScores, OfAnotherHostMergeAsThatHost) {
  const RandomLayer layer = random_layer(2, 12);
  KeepKv first;
  first.order = MergeOrder::merge_first;
  first.threshold = std::nullopt;
  for (const Merge& merge : {Merge{KeepKv{}}, Merge{first}, Merge{D2o{}}, Merge{Cam{4, 3}}}) {
    Policy policy = kTopK;
    policy.merge = merge;
    expect_same(layer, policy, host_of(scores_of_host(layer)), different_budgets(2));
  }
}

TEST(GivenScores, WithoutThoseOfQueryHeadsAreThoseOfTheirKvHead) {
  const RandomLayer layer = random_layer(2, 13);
  GivenLayer scores = scores_of_host(layer, false);
  GivenLayer repeated = scores;
  repeated.head_score = Matrix(kQueryHeads, kTokens);
  for (int64_t h = 0; h < kQueryHeads; ++h)
    std::ranges::copy(scores.score.row(h / 2), repeated.head_score.row(h).begin());
  Policy policy{host_of(repeated), {}, Critical{}, {}, {}};
  expect_same(layer, policy, host_of(std::move(scores)), different_budgets(2));
}

// Of equal scores the smaller position; -0 and 0 are equal, and negative scores are scores.
TEST(GivenScores, KeepTheLargestBesideThoseThatAreAlwaysKept) {
  const RandomLayer layer({1, 1, 2, 2}, 7, 1, 1, 14);
  const Given host = host_of({.always_kept = {2, 5}, .score = matrix({{-3, -0.0, -9, 0, -1, -9, -1}})}, 1);
  const auto kept = [&](int64_t budget) {
    return make_session()->compress(layer.view(), {host, {}, {}, {}, {}}, Positions{budget}).kept[0];
  };
  EXPECT_EQ(kept(2), (Positions{2, 5}));
  EXPECT_EQ(kept(3), (Positions{1, 2, 5}));
  EXPECT_EQ(kept(5), (Positions{1, 2, 3, 4, 5}));
  EXPECT_EQ(kept(6), (Positions{1, 2, 3, 4, 5, 6}));
}

TEST(GivenScores, AreThoseOfTheOthersInTheRecord) {
  const RandomLayer layer({1, 1, 2, 2}, 4, 1, 1, 15);
  const Given host = host_of({.always_kept = {1}, .score = matrix({{4, 3, 2, 1}})}, 1);
  const PromptRecord record = make_session()->compress(layer.view(), {host, {}, {}, {}, {}}, Positions{2});
  EXPECT_EQ(record.score_positions, (Positions{0, 2, 3}));
  expect_equal(record.score, matrix({{4, 2, 1}}), "score");
}

TEST(GivenKeptSets, OfAnotherHostAttendAndMergeAsThatHost) {
  const RandomLayer layer = random_layer(2, 16);
  const Positions budgets = different_budgets(2);
  const Given host = host_of({.kept = make_session()->compress(layer.view(), kTopK, budgets).kept});
  for (const Merge& merge : {Merge{NoMerge{}}, Merge{KeepKv{}}, Merge{ConvexMerge{}}, Merge{Cam{4, 3}}}) {
    Policy policy = kTopK;
    policy.merge = merge;
    expect_same(layer, policy, host, budgets);
  }
}

std::string refused(const Given& host, const Positions& budgets, const Selection& selection = TopK{},
                    const Allocation& allocation = Uniform{}) {
  const RandomLayer layer = random_layer(2, 17);
  return message_of<InvalidPolicy>([&] {
    make_session()->compress(layer.view(), {host, {}, selection, allocation, {}}, budgets);
  });
}

TEST(Given, IsRefusedWithoutWhatItNeeds) {
  EXPECT_EQ(refused({"a.safetensors"}, {9, 9}),
            "given's file is read by replay, evaluate, sweep and diff alone");
  EXPECT_EQ(refused(host_of({.always_kept = {0, 1, 2}, .score = Matrix(2, kTokens)}), {2, 9}),
            "budget of 2 entries is below the 3 that given's file always keeps");
  const Given keeps = host_of({.kept = {{1, 2}, {3}}});
  EXPECT_EQ(refused(keeps, {2, 1}), "no error");
  EXPECT_EQ(refused(keeps, {2, 2}), "given's file has kept sets, whose sizes are the budgets");
  const std::string no_ranks = "; hosts that do are snapkv, h2o, tova, given with scores";
  EXPECT_EQ(refused(keeps, {2, 1}, Critical{}),
            "given ranks nothing: it takes no score and no selection" + no_ranks);
  EXPECT_EQ(refused(keeps, {2, 1}, TopK{}, AdaKv{}),
            "adakv shares out by scores, but given ranks nothing" + no_ranks);
  EXPECT_EQ(refused(keeps, {2, 1}, TopK{}, Pyramid{}),
            "pyramid and headkv share out a budget, but given's file has kept sets: it takes no allocation");
}

TEST(Given, NeedsRecordedQueriesOnlyWhereAttentionDecides) {
  const Given host = host_of({.score = Matrix(2, kTokens)}, kRecorded + 1);
  const std::string window = "window=9 but the trace records only 8 prompt queries";
  Critical adaptive;
  adaptive.alpha = std::nullopt;
  EXPECT_EQ(refused(host, {9, 9}), "no error");
  EXPECT_EQ(refused(host, {9, 9}, Critical{}), "no error");
  EXPECT_EQ(refused(host, {9, 9}, adaptive), window);
  EXPECT_EQ(refused(host, {9, 9}, ThetaSweep{}), window);
}

// What StreamingLLM without sinks does, which has no say in what is kept or evicted here.
TEST(GivenEvictions, AreThoseOfTheMethodHeadByHead) {
  const RandomLayer layer = random_layer(2, 19);
  std::vector<int64_t> heads;
  GivenLayer newest{.kept = {{}, {}}, .evict = [&](const EvictionView& cache) {
                      heads.push_back(cache.kv_head);
                      EXPECT_EQ(cache.positions.back(), std::ranges::max(cache.positions));
                      EXPECT_EQ(cache.weights.cols, std::ssize(cache.positions));
                      EXPECT_EQ(cache.keys.rows, std::ssize(cache.positions));
                      return std::ranges::min(cache.positions);
                    }};
  for (Positions& kept : newest.kept) {
    for (int64_t i = kTokens - 9; i < kTokens; ++i) kept.push_back(i);
  }
  expect_same(layer, {StreamingLlm{.sinks = 0}, {}, {}, {}, {}}, host_of(std::move(newest)), {9, 9});
  ASSERT_EQ(std::ssize(heads), 2 * kSteps);
  for (size_t i = 0; i < heads.size(); ++i) EXPECT_EQ(heads[i], i % 2) << "one head after the other";
}

TEST(GivenEvictions, OfWhatIsNotInTheCacheAreRefused) {
  const RandomLayer layer = random_layer(2, 20);
  GivenLayer given{.kept = {{0}, {1}}, .evict = [](const EvictionView&) { return 2; }};
  const auto session = make_session();
  session->compress(layer.view(), {host_of(std::move(given)), {}, {}, {}, {}}, Positions{1, 1});
  EXPECT_EQ(message_of<InvalidPolicy>([&] { session->step(layer.step(0)); }),
            "the method evicts position 2 of KV head 0, which is not in its cache");
}

TEST(Given, OfAnotherShapeIsRefused) {
  const RandomLayer layer = random_layer(2, 18);
  const auto message = [&](GivenLayer given) {
    return message_of<ShapeMismatch>([&] {
      make_session()->compress(layer.view(), {host_of(std::move(given)), {}, {}, {}, {}}, Positions{9, 9});
    });
  };
  EXPECT_NE(message({.score = Matrix(1, kTokens)}), "no error");
  EXPECT_NE(message({.score = Matrix(2, kTokens - 1)}), "no error");
  EXPECT_NE(message({.score = Matrix(2, kTokens), .head_score = Matrix(2, kTokens)}), "no error");
  EXPECT_NE(message({.kept = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}}), "no error");
}

}  // namespace
}  // namespace kvbound::reference::session_given_test
