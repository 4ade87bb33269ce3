#include "merge_targets.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/numerics/columns.hpp>

#include "nearest_key.hpp"

namespace kvbound::reference {
namespace {

std::vector<MergeCluster> clusters_of(std::map<int64_t, std::vector<int64_t>> members) {
  std::vector<MergeCluster> clusters;
  for (auto& [into, from] : members) clusters.push_back({into, std::move(from), {}});
  return clusters;
}

// The end of each candidate's chain of parents. Parents have strictly
// higher scores, so chains are finite; each link is followed once.
std::vector<int64_t> roots_of(const std::vector<NearestKey>& parents, const SimilarTarget& target) {
  std::vector<int64_t> roots(parents.size(), -1);
  std::vector<int64_t> chain;
  for (int64_t i = 0; i < std::ssize(parents); ++i) {
    int64_t root = i;
    while (roots[root] < 0) {
      const NearestKey& parent = parents[root];
      chain.push_back(root);
      if (parent.index < 0 || !is_similar(parent.cosine, target)) break;
      root = parent.index;
    }
    const int64_t known = roots[root];
    for (const int64_t link : chain) roots[link] = known < 0 ? root : known;
    chain.clear();
  }
  return roots;
}

}  // namespace

bool is_similar(double cosine, const SimilarTarget& target) {
  return !target.threshold || cosine > target.threshold->value();
}

std::vector<int64_t> others_than(std::span<const int64_t> chosen, int64_t count) {
  std::vector<int64_t> others(count);
  std::iota(others.begin(), others.end(), 0);
  for (const int64_t index : chosen) others[index] = -1;
  std::erase(others, -1);
  return others;
}

MergeTargets evict_first(MatrixView keys, std::vector<int64_t> kept, const SimilarTarget& target) {
  const std::vector<int64_t> leaving = others_than(kept, keys.rows);
  const std::vector<NearestKey> nearest = nearest_keys(rows_of(keys, leaving), rows_of(keys, kept));
  std::map<int64_t, std::vector<int64_t>> members;
  std::vector<int64_t> target_of(keys.rows, kNotMerged);
  for (const int64_t position : kept) target_of[position] = position;
  for (size_t i = 0; i < leaving.size(); ++i) {
    if (nearest[i].index < 0 || !is_similar(nearest[i].cosine, target)) continue;
    target_of[leaving[i]] = kept[nearest[i].index];
    members[target_of[leaving[i]]].push_back(leaving[i]);
  }
  return {std::move(kept), clusters_of(std::move(members)), std::move(target_of)};
}

MergeTargets merge_first(MatrixView keys, VectorView scores, std::span<const int64_t> always_kept, int64_t k,
                         const SimilarTarget& target) {
  const std::vector<int64_t> candidates = others_than(always_kept, keys.rows);
  const std::vector<int64_t> roots = roots_of(nearest_better_keys(rows_of(keys, candidates), scores), target);
  std::map<int64_t, double> sums;  // by root
  for (size_t i = 0; i < roots.size(); ++i) sums[roots[i]] += scores[i];
  std::vector<int64_t> root_of_sum;
  std::vector<double> root_scores;
  for (const auto& [root, score] : sums) {
    root_of_sum.push_back(root);
    root_scores.push_back(score);
  }
  std::vector<bool> stays(roots.size());
  MergeTargets result;
  const int64_t staying = std::min(k, std::ssize(root_scores));
  for (const int64_t index : select_top(root_scores, staying)) {
    const int64_t root = root_of_sum[index];
    stays[root] = true;
    result.kept.push_back(candidates[root]);
  }
  std::ranges::copy(always_kept, std::back_inserter(result.kept));
  std::ranges::sort(result.kept);
  std::map<int64_t, std::vector<int64_t>> members;
  for (size_t i = 0; i < roots.size(); ++i) {
    const int64_t root = roots[i];
    if (stays[root] && root != static_cast<int64_t>(i)) {
      members[candidates[root]].push_back(candidates[i]);
    }
  }
  result.clusters = clusters_of(std::move(members));
  result.target_of.resize(keys.rows);
  std::iota(result.target_of.begin(), result.target_of.end(), 0);
  for (size_t i = 0; i < roots.size(); ++i) result.target_of[candidates[i]] = candidates[roots[i]];
  return result;
}

}  // namespace kvbound::reference
