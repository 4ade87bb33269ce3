// Layers that decode under every policy, and the comparison of what is recorded of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {

inline constexpr int64_t kTokens = 48, kWindow = 8, kSteps = 20, kPeriod = 4;
inline constexpr LayerShape kShape{4, 2, 8, 12};

// A layer and its decode steps.
struct Decoding {
  int64_t tokens = kTokens;
  uint64_t seed = 0;
  LayerShape shape = kShape;
  Tensor keys = random_tensor(4 * seed + 1, shape.kv_heads, tokens + kSteps, shape.head_dim);
  Tensor values = random_tensor(4 * seed + 2, shape.kv_heads, tokens + kSteps, shape.head_dim);
  Tensor queries = random_tensor(4 * seed + 3, shape.query_heads, kWindow + kSteps, shape.head_dim);
  Tensor projection = random_tensor(4 * seed + 4, 1, shape.query_heads* shape.head_dim, shape.model_dim);

  LayerView layer() const {
    return {shape,
            0.35,
            keys.view().middle_rows(0, tokens),
            values.view().middle_rows(0, tokens),
            queries.view().middle_rows(0, kWindow),
            projection.slice(0)};
  }
  StepView step(int64_t t) const {
    const auto row_of_each = [](const Tensor& tensor, int64_t row) {
      const TensorView rows = tensor.view().middle_rows(row, 1);
      return MatrixView(rows.data, rows.slices, rows.cols, rows.slice_stride);
    };
    return {row_of_each(keys, tokens + t), row_of_each(values, tokens + t),
            row_of_each(queries, kWindow + t)};
  }
  std::vector<StepView> steps() const {
    std::vector<StepView> all;
    for (int64_t t = 0; t < kSteps; ++t) all.push_back(step(t));
    return all;
  }
};

struct NamedPolicy {
  std::string name;
  Policy policy;
};

// As a test's name.
inline std::string name_of(const testing::TestParamInfo<NamedPolicy>& tested) {
  std::string name;
  for (const char c : tested.param.name) name += c == '+' || c == '-' ? '_' : c;
  return name;
}

inline Policy policy_of(Host host, Score score, Selection selection, Allocation allocation, Merge merge) {
  return {std::move(host), std::move(score), std::move(selection), std::move(allocation), std::move(merge)};
}

// Every host with every score, and with every selection, allocation and merge that it takes.
inline std::vector<NamedPolicy> policies() {
  std::vector<NamedPolicy> all;
  Critical adaptive;
  adaptive.alpha.reset();
  KeepKv every_entry, zip, merge_first, periodic, current;
  every_entry.threshold.reset();
  zip.key = MergedKey::zip;
  zip.gqa = MergeGqa::mean;
  merge_first.order = MergeOrder::merge_first;
  periodic.period = kPeriod;
  current.prediction.predict = Prediction::current;
  const std::vector<std::pair<std::string, Host>> hosts{
      {"snapkv", SnapKv{kWindow, 3}}, {"h2o", H2o{kWindow, 2, {}}}, {"tova", Tova{2}}};
  const std::vector<std::pair<std::string, Score>> scores{{"value", ObcacheValue{}},
                                                          {"key", ObcacheKey{{Space::projected}}},
                                                          {"joint", ObcacheJoint{}},
                                                          {"exact", ExactRemoval{}}};
  const std::vector<std::pair<std::string, Selection>> selections{
      {"top-k", TopK{}}, {"critical", Critical{}}, {"adaptive", adaptive}, {"theta-sweep", ThetaSweep{}}};
  const std::vector<std::pair<std::string, Merge>> merges{
      {"keepkv", KeepKv{}},     {"every-entry", every_entry}, {"zip", zip},   {"merge-first", merge_first},
      {"current", current},     {"convex", ConvexMerge{}},    {"d2o", D2o{}}, {"cam", Cam{}},
      {"kvmerger", KvMerger{}}, {"period", periodic}};
  for (const auto& [name, host] : hosts) {
    for (const auto& [score_name, score] : scores) {
      all.push_back({name + "+" + score_name, policy_of(host, score, TopK{}, Uniform{}, NoMerge{})});
    }
    for (const auto& [selection_name, selection] : selections) {
      all.push_back(
          {name + "+" + selection_name, policy_of(host, AttentionScore{}, selection, Uniform{}, NoMerge{})});
    }
    all.push_back({name + "+adakv", policy_of(host, AttentionScore{}, TopK{}, AdaKv{}, NoMerge{})});
    for (const auto& [merge_name, merge] : merges) {
      all.push_back({name + "+" + merge_name, policy_of(host, AttentionScore{}, TopK{}, Uniform{}, merge)});
    }
  }
  for (const auto& [name, host] : std::vector<std::pair<std::string, Host>>{
           {"streaming-llm", StreamingLlm{2}}, {"random", RandomHost{0, 2, 4}}}) {
    all.push_back({name, policy_of(host, AttentionScore{}, TopK{}, Uniform{}, NoMerge{})});
    for (const auto& [merge_name, merge] : merges) {
      if (merge_name == "merge-first" || merge_name == "period") continue;  // need a host that ranks entries
      all.push_back({name + "+" + merge_name, policy_of(host, AttentionScore{}, TopK{}, Uniform{}, merge)});
    }
  }
  return all;
}

/// Those of them with these names.
inline std::vector<NamedPolicy> policies_named(const std::vector<std::string>& names) {
  std::vector<NamedPolicy> all = policies();
  std::erase_if(all,
                [&](const NamedPolicy& one) { return std::ranges::find(names, one.name) == names.end(); });
  return all;
}

inline void expect_equal(const Matrix& one, const Matrix& other) {
  EXPECT_EQ(one.rows(), other.rows());
  EXPECT_TRUE(std::ranges::equal(one.numbers(), other.numbers()));
}

inline void expect_equal(const HeadMerge& one, const HeadMerge& other) {
  EXPECT_EQ(one.positions, other.positions);
  EXPECT_EQ(one.votes, other.votes);
  expect_equal(one.keys, other.keys);
  expect_equal(one.values, other.values);
  EXPECT_EQ(one.target_of, other.target_of);
  ASSERT_EQ(one.clusters.size(), other.clusters.size());
  for (size_t i = 0; i < one.clusters.size(); ++i) {
    EXPECT_EQ(one.clusters[i].into, other.clusters[i].into);
    EXPECT_EQ(one.clusters[i].from, other.clusters[i].from);
    expect_equal(one.clusters[i].log_scores, other.clusters[i].log_scores);
  }
}

inline void expect_equal(const StepRecord& one, const StepRecord& other) {
  expect_equal(one.output, other.output);
  EXPECT_EQ(one.evicted, other.evicted);
  EXPECT_EQ(one.merged_into, other.merged_into);
  EXPECT_EQ(one.rebuilt, other.rebuilt);
  EXPECT_EQ(one.stage_one, other.stage_one);
  ASSERT_EQ(one.merges.size(), other.merges.size());
  for (size_t g = 0; g < one.merges.size(); ++g) expect_equal(one.merges[g], other.merges[g]);
}

}  // namespace kvbound::parity
