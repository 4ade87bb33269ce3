#include "merged_cache.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {
namespace {

// The positions of the kept entries and of the members that merge with them, ascending.
std::vector<int64_t> with_merged(const std::vector<int64_t>& staying,
                                 const std::vector<MergeCluster>& clusters) {
  std::vector<int64_t> merging;
  for (const MergeCluster& cluster : clusters)
    merging.insert(merging.end(), cluster.from.begin(), cluster.from.end());
  std::ranges::sort(merging);
  std::vector<int64_t> all;
  std::ranges::set_union(staying, merging, std::back_inserter(all));
  return all;
}

// The KV head's item of a record; throws ShapeMismatch if the record has none.
template <class Item>
const Item& of_head(const char* what, const std::vector<Item>& heads, size_t kv_head) {
  if (kv_head < heads.size()) return heads[kv_head];
  throw ShapeMismatch(std::string(what) + " of " + std::to_string(heads.size()) +
                      " KV heads are recorded, but not of KV head " + std::to_string(kv_head));
}

void require_consistent(const HeadMerge& merge, int64_t head_dim) {
  const auto count = std::ssize(merge.positions);
  require_equal("merged votes", std::ssize(merge.votes), "merged positions", count);
  for (const auto& [what, rows] :
       {std::pair("merged keys", merge.keys.view()), {"merged values", merge.values.view()}}) {
    require_equal(std::string("rows of ") + what, rows.rows, "merged positions", count);
    if (count > 0) require_equal(std::string("columns of ") + what, rows.cols, "head_dim", head_dim);
  }
}

}  // namespace

int64_t CacheEntries::find(int64_t position) const {
  const auto found = std::ranges::lower_bound(positions, position);
  return found != positions.end() && *found == position ? found - positions.begin() : -1;
}

int64_t CacheEntries::row_of(int64_t position) const {
  const int64_t row = find(position);
  if (row < 0) throw ShapeMismatch("position " + std::to_string(position) + " is in no entry of the cache");
  return row;
}

void CacheEntries::append(int64_t position, double vote, VectorView key, VectorView value) {
  if (!positions.empty() && positions.back() >= position) {
    throw ShapeMismatch("position " + std::to_string(position) + " comes after position " +
                        std::to_string(positions.back()));
  }
  positions.push_back(position);
  votes.push_back(vote);
  keys.append_row(key);
  values.append_row(value);
}

CacheEntries CacheEntries::at(const std::vector<int64_t>& wanted) const {
  CacheEntries chosen;
  for (const int64_t position : wanted) {
    const int64_t row = row_of(position);
    chosen.append(position, votes[row], keys.row(row), values.row(row));
  }
  return chosen;
}

MergedCache::MergedCache(MatrixView keys, MatrixView values, int64_t prompt_tokens, int64_t kv_head,
                         const PromptRecord& prompt)
    : keys_(keys),
      values_(values),
      kv_head_(static_cast<size_t>(kv_head)),
      positions_(prompt, kv_head, prompt_tokens),
      tokens_(prompt_tokens) {
  if (const HeadMerge* merge = merge_of(prompt.merges)) {
    prompt_merge_ = fill(*merge);
  } else {
    entries_ = originals(positions_.now());
  }
}

const HeadMerge* MergedCache::merge_of(const std::vector<HeadMerge>& merges) const {
  return merges.empty() ? nullptr : &of_head("merges", merges, kv_head_);
}

CacheEntries MergedCache::originals(const std::vector<int64_t>& positions) const {
  CacheEntries entries;
  for (const int64_t position : positions) append_original(entries, position);
  return entries;
}

void MergedCache::append_original(CacheEntries& entries, int64_t position) const {
  if (position < 0 || position >= std::min(tokens_, keys_.rows)) {
    throw ShapeMismatch("position " + std::to_string(position) + " is none of the " +
                        std::to_string(std::min(tokens_, keys_.rows)) + " that there are");
  }
  entries.append(position, 1, keys_.row(position), values_.row(position));
}

// Replaces the whole cache by the recorded entries, which were merged from original ones.
std::optional<CacheMerge> MergedCache::fill(const HeadMerge& merge) {
  require_consistent(merge, keys_.cols);
  entries_ = {};
  for (size_t i = 0; i < merge.positions.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    entries_.append(merge.positions[i], merge.votes[i], merge.keys.row(row), merge.values.row(row));
  }
  if (merge.clusters.empty()) return std::nullopt;
  return CacheMerge{originals(with_merged(merge.positions, merge.clusters)), &merge.clusters};
}

std::optional<CacheMerge> MergedCache::enter(const StepRecord& step) {
  ++tokens_;
  const std::vector<int64_t>& positions = positions_.enter(step);
  if (step.rebuilt) return fill(of_head("merges", step.merges, kv_head_));
  append_original(entries_, positions.back());
  return std::nullopt;
}

std::optional<CacheMerge> MergedCache::evict(const StepRecord& step) {
  const std::vector<int64_t>& staying = positions_.evict(step);
  const HeadMerge* merge = step.rebuilt ? nullptr : merge_of(step.merges);
  std::optional<CacheMerge> done;
  if (merge && !merge->clusters.empty()) {
    done = CacheMerge{entries_.at(with_merged(staying, merge->clusters)), &merge->clusters};
  }
  if (staying.size() < entries_.positions.size()) entries_ = entries_.at(staying);
  if (!merge) return done;
  require_consistent(*merge, keys_.cols);
  for (size_t i = 0; i < merge->positions.size(); ++i) {
    const int64_t row = entries_.row_of(merge->positions[i]);
    entries_.votes[row] = merge->votes[i];
    std::ranges::copy(merge->keys.row(i), entries_.keys.row(row).begin());
    std::ranges::copy(merge->values.row(i), entries_.values.row(row).begin());
  }
  return done;
}

}  // namespace kvbound::reference
