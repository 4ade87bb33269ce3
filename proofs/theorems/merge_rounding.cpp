#include "merge_rounding.hpp"

#include <algorithm>

#include <kvbound/proofs/oracle/merge_bounds.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/merging/weighted_mean.hpp>

namespace kvbound::proofs {
namespace {

using exact::Real;
using exact::Reals;
using oracle::Bounded;
using oracle::Row;
using oracle::Rows;

// The members of a cluster in doubles, as the reference's input,
// with ln s^ of heads first_head..first_head + count - 1.
reference::ClusterMembers members_of(const Instance& instance, const MergingCase& merging,
                                     const Cluster& cluster, size_t first_head, size_t count) {
  reference::ClusterMembers members;
  members.log_scores = Matrix(static_cast<int64_t>(count), std::ssize(cluster));
  for (size_t j = 0; j < cluster.size(); ++j) {
    members.keys.append_row(merging.keys.row(cluster[j]));
    members.values.append_row(instance.values.row(cluster[j]));
    members.votes.push_back(instance.votes[cluster[j]]);
    for (size_t h = 0; h < count; ++h) {
      members.log_scores(h, j) = static_cast<double>(merging.heads[first_head + h].predicted[cluster[j]]);
    }
  }
  return members;
}

void hold(const std::string& what, VectorView computed, const Row& expected, Outcome& outcome) {
  outcome.reference_holds(what + " has its size", computed.size() == expected.size());
  for (size_t i = 0; i < expected.size() && i < computed.size(); ++i)
    outcome.reference_within(what, computed[i], expected[i]);
}

// The log scores; the bounds are those of rounding to the doubles that the reference is given.
Row given(const Reals& log_scores) {
  Row result;
  for (const Real& score : log_scores)
    result.emplace_back(score, abs(score - Real(static_cast<double>(score))));
  return result;
}

// Whether all computed numbers are within their bounds.
bool are_within(VectorView computed, const Row& expected) {
  for (size_t c = 0; c < expected.size(); ++c) {
    if (!(abs(Real(computed[c]) - expected[c].value) <= expected[c].bound)) return false;
  }
  return computed.size() == expected.size();
}

void hold(const reference::MergedEntry& computed, const oracle::MergedCluster& expected, Outcome& outcome) {
  hold("a merged value", computed.value, expected.value, outcome);
  outcome.reference_within("the votes", computed.votes, expected.votes);
  hold("what is predicted of a merged entry", computed.log_scores, expected.log_scores, outcome);
  if (expected.keys.empty()) return;
  outcome.reference_holds("a mean score is singular next to 0 only",
                          computed.zip.singular == expected.singular);
  outcome.reference_within("ZIP's scale", computed.zip.scale, expected.zip_scale);
  // Held to the key of one of the ranks that the reference may find.
  const auto met =
      std::ranges::find_if(expected.keys, [&](const Row& key) { return are_within(computed.key, key); });
  hold("a merged key", computed.key, met == expected.keys.end() ? expected.keys.back() : *met, outcome);
}

Matrix first_queries(const MergingCase& merging) {
  Matrix queries;
  const auto per_head = std::ssize(merging.heads.front().queries);
  for (int64_t h = 0; h < std::ssize(merging.heads); ++h)
    queries.append_row(merging.queries.row(h * per_head));
  return queries;
}

reference::MergeQueries merge_queries(const KeyRule& rule, const MergingCase& merging) {
  std::vector<double> log_denominators;
  for (const Real& number : merging.log_denominators())
    log_denominators.push_back(static_cast<double>(number));
  return {rule, first_queries(merging), kScale, log_denominators};
}

}  // namespace

void hold_convex_weights(const MergingCase& merging, Outcome& outcome) {
  for (const Cluster& cluster : merging.clusters) {
    Matrix keys;
    for (const int64_t member : cluster) keys.append_row(merging.keys.row(member));
    const Rows rows = oracle::exactly(keys.view());
    const std::vector<double> weights = reference::similarity_weights(keys);
    hold("D2O's weight", weights, oracle::similarity_weights(rows), outcome);
    hold("KVMerger's weight", reference::gaussian_weights(keys), oracle::gaussian_weights(rows), outcome);
    hold("a weighted mean", reference::weighted_mean(weights, keys),
         oracle::weighted_sum(oracle::exactly(VectorView(weights)), rows), outcome);
  }
}

void hold_cluster_means(const Instance& instance, const MergingCase& merging, Outcome& outcome) {
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const reference::ClusterMembers members = members_of(instance, merging, cluster, h, 1);
    const reference::ClusterMean computed = reference::cluster_mean(members, members.log_scores.row(0));
    const oracle::EntriesOf<Bounded> entries{oracle::exactly(members.keys.view()),
                                             oracle::exactly(members.values.view()),
                                             oracle::exactly(VectorView(members.votes))};
    const oracle::ClusterMeanOf<Bounded> expected(entries, given(merging.predicted(h, cluster)));
    hold("a member's share", computed.weights, expected.weights, outcome);
    outcome.reference_within("ln W", computed.log_weight, expected.log_weight);
    outcome.reference_within("m", computed.mean_log_score, expected.mean_score);
    outcome.reference_within("KL", computed.divergence, expected.divergence);
    outcome.reference_holds("KL >= 0", computed.divergence >= 0);
    hold("a mean key", computed.key, expected.key, outcome);
    hold("a mean value", computed.value, expected.value, outcome);
    outcome.reference_within("ln(W / P)", reference::log_mean_score(members.votes, members.log_scores.row(0)),
                             expected.target);
  });
}

void hold_merges(const KeyRule& rule, const Instance& instance, const MergingCase& merging,
                 Outcome& outcome) {
  const reference::MergeQueries queries = merge_queries(rule, merging);
  const Row log_denominators = given(merging.log_denominators());
  for (const Cluster& cluster : merging.clusters) {
    const reference::ClusterMembers members = members_of(instance, merging, cluster, 0, merging.heads.size());
    Rows scores;
    for (size_t h = 0; h < merging.heads.size(); ++h) scores.push_back(given(merging.predicted(h, cluster)));
    hold(reference::merge_cluster(queries, members),
         oracle::merge_cluster(rule, first_queries(merging), kScale, members, scores, log_denominators),
         outcome);
  }
}

namespace {

void hold_attention(const Matrix& queries, const Matrix& keys, const Matrix& values,
                    const std::vector<double>& votes, Outcome& outcome) {
  const reference::AttentionOutput computed = reference::attention(queries, keys, values, kScale, votes);
  const oracle::Attention expected = oracle::attention(queries, keys, values, kScale, votes);
  for (int64_t i = 0; i < queries.rows(); ++i) {
    const int64_t index = i;
    hold("an output with votes", computed.output.row(i), expected.output[index], outcome);
    outcome.reference_within("a log-sum-exp with votes", computed.log_sum_exp[index],
                             expected.log_sum_exp[index]);
  }
}

}  // namespace

void hold_attention(const Instance& instance, const MergingCase& merging, Outcome& outcome) {
  hold_attention(merging.queries, merging.keys, instance.values, instance.votes, outcome);
  if (merging.clusters.empty()) return;
  const Cluster& cluster = merging.clusters.front();
  const reference::MergedEntry merged =
      reference::merge_cluster(merge_queries({MergedKey::min_norm, MergeGqa::joint, 0}, merging),
                               members_of(instance, merging, cluster, 0, merging.heads.size()));
  Matrix keys, values;
  std::vector<double> votes;
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    if (std::ranges::find(cluster, j) != cluster.end()) continue;
    keys.append_row(merging.keys.row(j));
    values.append_row(instance.values.row(j));
    votes.push_back(instance.votes[j]);
  }
  keys.append_row(merged.key);
  values.append_row(merged.value);
  votes.push_back(merged.votes);
  hold_attention(merging.queries, keys, values, votes, outcome);
}

void hold_chains(const Instance& instance, const MergingCase& merging, Outcome& outcome) {
  for_each_cluster(merging, [&](size_t h, const Cluster& cluster) {
    const reference::ClusterMembers members = members_of(instance, merging, cluster, h, 1);
    const VectorView scores = members.log_scores.row(0);
    double votes = members.votes[0], score = scores[0];
    Bounded expected(score);
    for (size_t j = 1; j < cluster.size(); ++j) {
      const std::vector<double> pair_votes{votes, members.votes[j]}, pair{score, scores[j]};
      score = reference::log_mean_score(pair_votes, pair);
      expected = oracle::log_mean_score(oracle::exactly(VectorView(pair_votes)), Row{expected, scores[j]});
      votes += members.votes[j];
    }
    const Bounded at_once = oracle::log_mean_score(oracle::exactly(VectorView(members.votes)),
                                                   given(merging.predicted(h, cluster)));
    expected = {at_once.value, expected.bound + at_once.bound};
    outcome.reference_within("ln(W / P), one by one", score, expected);
  });
}

}  // namespace kvbound::proofs
