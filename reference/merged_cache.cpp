#include "merged_cache.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace kvbound::reference {
namespace {

// Those who stay and those who merge with them.
std::vector<int64_t> with_merged(const std::vector<int64_t>& staying, const std::vector<MergeGroup>& groups) {
  std::vector<int64_t> merging;
  for (const MergeGroup& group : groups) merging.insert(merging.end(), group.from.begin(), group.from.end());
  std::ranges::sort(merging);
  std::vector<int64_t> all;
  std::ranges::set_union(staying, merging, std::back_inserter(all));
  return all;
}

}  // namespace

int64_t CacheEntries::find(int64_t position) const {
  const auto found = std::ranges::lower_bound(positions, position);
  return found != positions.end() && *found == position ? found - positions.begin() : -1;
}

void CacheEntries::append(int64_t position, double vote, VectorView key, VectorView value) {
  assert(positions.empty() || positions.back() < position);
  positions.push_back(position);
  votes.push_back(vote);
  keys.append_row(key);
  values.append_row(value);
}

CacheEntries CacheEntries::at(const std::vector<int64_t>& wanted) const {
  CacheEntries chosen;
  for (const int64_t position : wanted) {
    const int64_t row = find(position);
    assert(row >= 0);
    chosen.append(position, votes[static_cast<size_t>(row)], keys.row(row), values.row(row));
  }
  return chosen;
}

MergedCache::MergedCache(MatrixView keys, MatrixView values, int64_t prompt_tokens, int64_t kv_head,
                         const PromptRecord& prompt)
    : keys_(keys), values_(values), kv_head_(static_cast<size_t>(kv_head)), next_(prompt_tokens) {
  if (const HeadMerge* merge = merge_of(prompt.merges)) {
    prompt_merge_ = fill(*merge);
  } else {
    entries_ = originals(prompt.kept[kv_head_]);
  }
}

const HeadMerge* MergedCache::merge_of(const std::vector<HeadMerge>& merges) const {
  return merges.empty() ? nullptr : &merges[kv_head_];
}

CacheEntries MergedCache::originals(const std::vector<int64_t>& positions) const {
  CacheEntries entries;
  for (const int64_t position : positions) {
    entries.append(position, 1, keys_.row(position), values_.row(position));
  }
  return entries;
}

// The whole cache anew, from original entries.
std::optional<CacheMerge> MergedCache::fill(const HeadMerge& merge) {
  entries_ = {merge.positions, merge.votes, merge.keys, merge.values};
  if (merge.groups.empty()) return std::nullopt;
  return CacheMerge{originals(with_merged(merge.positions, merge.groups)), &merge.groups};
}

std::optional<CacheMerge> MergedCache::enter(const StepRecord& step) {
  const int64_t position = next_++;
  if (step.rebuilt) return fill(*merge_of(step.merges));
  entries_.append(position, 1, keys_.row(position), values_.row(position));
  return std::nullopt;
}

std::optional<CacheMerge> MergedCache::leave(const StepRecord& step) {
  std::vector<int64_t> staying = entries_.positions;
  if (!step.left.empty()) std::erase(staying, step.left[kv_head_]);
  const HeadMerge* merge = step.rebuilt ? nullptr : merge_of(step.merges);
  std::optional<CacheMerge> done;
  if (merge && !merge->groups.empty()) {
    done = CacheMerge{entries_.at(with_merged(staying, merge->groups)), &merge->groups};
  }
  if (staying.size() < entries_.positions.size()) entries_ = entries_.at(staying);
  if (!merge) return done;
  for (size_t i = 0; i < merge->positions.size(); ++i) {
    const int64_t row = entries_.find(merge->positions[i]);
    assert(row >= 0);
    entries_.votes[static_cast<size_t>(row)] = merge->votes[i];
    std::ranges::copy(merge->keys.row(static_cast<int64_t>(i)), entries_.keys.row(row).begin());
    std::ranges::copy(merge->values.row(static_cast<int64_t>(i)), entries_.values.row(row).begin());
  }
  return done;
}

}  // namespace kvbound::reference
