// Sessions that merge, with the caches that their records describe, and the hosts and methods that tests try.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/session/session.hpp>

#include "session_cases.hpp"

namespace kvbound::test {

inline constexpr SimilarTarget kMergeAll{std::nullopt};

template <class Method>
Method with_target(Method method, const SimilarTarget& target) {
  static_cast<SimilarTarget&>(method) = target;
  return method;
}

inline KeepKv keep_kv_by(MergedKey key, MergeGqa gqa, Prediction predict) {
  KeepKv method;
  method.key = key;
  method.gqa = gqa;
  method.prediction.predict = predict;
  return method;
}

struct NamedMerge {
  std::string name;
  Merge merge;
};

/// KeepKV's variants.
inline std::vector<NamedMerge> keep_kv_merges(const SimilarTarget& target) {
  std::vector<NamedMerge> merges;
  const auto add = [&](const std::string& name, KeepKv method) {
    merges.push_back({name, with_target(method, target)});
  };
  add("keepkv", {});
  add("keepkv-paper", KeepKv::as_printed());
  for (const MergeGqa gqa : {MergeGqa::joint, MergeGqa::mean}) {
    const std::string suffix = gqa == MergeGqa::joint ? ":gqa=joint" : ":gqa=mean";
    add("keepkv:predict=current" + suffix, keep_kv_by(MergedKey::min_norm, gqa, Prediction::current));
    add("keepkv:key=convex" + suffix, keep_kv_by(MergedKey::convex, gqa, Prediction::ema));
  }
  add("keepkv:key=zip:predict=current", keep_kv_by(MergedKey::zip, MergeGqa::mean, Prediction::current));
  KeepKv periodic;
  periodic.period = 3;
  add("keepkv:period=3", periodic);
  return merges;
}

/// All methods that merge each evicted entry into the one with the most similar key.
inline std::vector<NamedMerge> targeted_merges(const SimilarTarget& target) {
  std::vector<NamedMerge> merges = keep_kv_merges(target);
  merges.push_back({"convex", with_target(ConvexMerge{}, target)});
  ConvexMerge current;
  current.prediction.predict = Prediction::current;
  current.gqa = MergeGqa::mean;
  merges.push_back({"convex:predict=current:gqa=mean", with_target(current, target)});
  merges.push_back({"d2o", with_target(D2o{}, target)});
  merges.push_back({"kvmerger", with_target(KvMerger{}, target)});
  return merges;
}

struct NamedHost {
  std::string name;
  Host host;
  int64_t always_kept;
};
inline std::vector<NamedHost> all_hosts() {
  return {{"snapkv", kHost, kHost.window},
          {"h2o", H2o{6, 2, 4}, 6},
          {"tova", Tova{2}, 2},
          {"streaming-llm", StreamingLlm{3}, 3},
          {"random", RandomHost{3, 2, 4}, 6}};
}

/// Policies of all hosts with these methods; combinations that are refused are left out.
struct NamedPolicy {
  std::string name;
  Policy policy;
  int64_t always_kept;
};
inline std::vector<NamedPolicy> merging_policies(const std::vector<NamedMerge>& merges) {
  std::vector<NamedPolicy> policies;
  for (const NamedHost& host : all_hosts()) {
    for (const NamedMerge& merge : merges) {
      const auto* keep_kv = std::get_if<KeepKv>(&merge.merge);
      if (!ranks(host.host) && keep_kv && (keep_kv->period || keep_kv->order == MergeOrder::merge_first))
        continue;
      policies.push_back(
          {host.name + "+" + merge.name, {host.host, {}, {}, {}, merge.merge}, host.always_kept});
    }
  }
  return policies;
}

/// One cached entry.
struct CachedEntry {
  std::vector<double> key, value;
  double votes = 1;
};

/// One KV head's cache, by position.
struct RecordedCache {
  std::map<int64_t, CachedEntry> entries;

  Matrix keys() const {
    Matrix rows;
    for (const auto& [position, entry] : entries) rows.append_row(entry.key);
    return rows;
  }
  Matrix values() const {
    Matrix rows;
    for (const auto& [position, entry] : entries) rows.append_row(entry.value);
    return rows;
  }
  std::vector<double> votes() const {
    std::vector<double> numbers;
    for (const auto& [position, entry] : entries) numbers.push_back(entry.votes);
    return numbers;
  }
  double all_votes() const {
    double sum = 0;
    for (const auto& [position, entry] : entries) sum += entry.votes;
    return sum;
  }
  Positions positions() const {
    Positions result;
    for (const auto& [position, entry] : entries) result.push_back(position);
    return result;
  }
  void put(int64_t position, VectorView key, VectorView value, double votes = 1) {
    entries[position] = {{key.begin(), key.end()}, {value.begin(), value.end()}, votes};
  }
  /// Stores the entries that a merge changed, or all entries of a rebuilt cache.
  void put(const HeadMerge& merge) {
    ASSERT_EQ(merge.votes.size(), merge.positions.size());
    for (size_t i = 0; i < merge.positions.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      put(merge.positions[i], merge.keys.row(row), merge.values.row(row), merge.votes[i]);
    }
  }
};

/// A session, and its caches as its records describe them.
class RecordedSession {
 public:
  RecordedSession(const RandomLayer& layer, const Policy& policy, const Positions& budgets,
                  std::unique_ptr<Session> session = reference::make_session())
      : layer_(layer),
        session_(std::move(session)),
        prompt(session_->compress(layer.view(), policy, budgets)) {
    for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
      caches.emplace_back();
      for (const int64_t position : prompt.kept[g]) enter(g, position);
      if (!prompt.merges.empty()) caches.back().put(prompt.merges[g]);
    }
  }

  StepRecord step() {
    StepRecord record = session_->step(layer_.step(steps));
    for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
      const int64_t index = g;
      if (record.rebuilt) {
        caches[index].entries.clear();
        caches[index].put(record.merges[index]);
      } else {
        enter(g, layer_.tokens + steps);
      }
    }
    seen = caches;
    ++steps;
    if (record.evicted.empty()) return record;
    for (size_t g = 0; g < caches.size(); ++g) {
      if (record.evicted[g] < 0) continue;
      if (!record.merges.empty()) caches[g].put(record.merges[g]);
      EXPECT_EQ(caches[g].entries.erase(record.evicted[g]), 1u) << "who leaves was there";
    }
    return record;
  }

 private:
  void enter(int64_t g, int64_t position) {
    caches[g].put(position, layer_.all_keys.slice(g).row(position), layer_.all_values.slice(g).row(position));
  }

  const RandomLayer& layer_;
  std::unique_ptr<Session> session_;

 public:
  PromptRecord prompt;
  std::vector<RecordedCache> caches;  ///< [kv_heads], the current caches
  std::vector<RecordedCache> seen;    ///< the caches that the last step's queries attended to
  int64_t steps = 0;                  ///< steps taken
};

}  // namespace kvbound::test
