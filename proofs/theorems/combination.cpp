#include "combination.hpp"

#include <algorithm>

namespace kvbound::proofs {
namespace {

using exact::Entries;
using exact::MergedEntry;
using exact::Query;
using exact::Real;
using exact::Reals;
using Positions = std::vector<int64_t>;

}  // namespace

Combination merged(const Seen& seen, const std::vector<Mixture>& mixtures) {
  std::vector<Positions> clusters;
  std::vector<MergedEntry> entries;
  Positions gone;
  for (const Mixture& mixture : mixtures) {
    clusters.push_back(mixture.cluster);
    entries.push_back(mixture.entry);
    gone.insert(gone.end(), mixture.cluster.begin(), mixture.cluster.end());
  }
  const Entries& cache = seen.merging.cache;
  const Query after = seen.over(exact::with_merged(cache, clusters, entries));
  Combination result{Reals(cache.count()), after.output};
  size_t next = 0;
  for (size_t j = 0; j < cache.count(); ++j) {
    if (std::ranges::find(gone, static_cast<int64_t>(j)) == gone.end())
      result.weights[j] = after.attention[next++];
  }
  for (const Mixture& mixture : mixtures) {
    const Real& share = after.attention[next++];
    for (size_t j = 0; j < mixture.cluster.size(); ++j)
      result.weights[mixture.cluster[j]] = share * mixture.weights[j];
  }
  return result;
}

Combination evicted(const Seen& seen) {
  const Positions& kept = seen.instance.kept;
  const Query after = seen.over(seen.merging.cache.at(kept));
  Combination result{Reals(seen.merging.cache.count()), after.output};
  for (size_t i = 0; i < kept.size(); ++i) result.weights[kept[i]] = after.attention[i];
  return result;
}

Positions sharing(const Positions& kept, int64_t entry) {
  Positions result;
  const bool followed = kept.back() > entry;
  for (int64_t i = 0; i < std::ssize(kept); ++i) {
    if (!followed || kept[i] > entry) result.push_back(i);
  }
  return result;
}

Entries spread(const Seen& seen, const Reals& factors) {
  const Positions& kept = seen.instance.kept;
  const Entries& cache = seen.merging.cache;
  Entries result = cache.at(kept);
  for (const int64_t e : all_but(seen.instance, kept)) {
    const Positions shares = sharing(kept, e);
    for (const int64_t i : shares) {
      result.values[i] =
          exact::combination(1, result.values[i], factors[e] / std::ssize(shares), cache.values[e]);
    }
  }
  return result;
}

Combination combined_by_cam(const Seen& seen) {
  const Positions& kept = seen.instance.kept;
  const Query after = seen.over(spread(seen, Reals(seen.merging.cache.count(), Real(1))));
  Combination result = evicted(seen);
  result.output = after.output;
  for (const int64_t e : all_but(seen.instance, kept)) {
    const Positions shares = sharing(kept, e);
    result.weights[e] = oracle::sum(oracle::at(after.attention, shares)) / std::ssize(shares);
  }
  return result;
}

}  // namespace kvbound::proofs
