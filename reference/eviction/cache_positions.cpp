#include "cache_positions.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::reference {
namespace {

// The KV head's item of a record; throws ShapeMismatch if the record has none.
template <class Item>
const Item& of_head(const char* what, const std::vector<Item>& heads, size_t kv_head) {
  if (kv_head < heads.size()) return heads[kv_head];
  throw ShapeMismatch(std::string(what) + " of " + std::to_string(heads.size()) +
                      " KV heads are recorded, but not of KV head " + std::to_string(kv_head));
}

}  // namespace

CachePositions::CachePositions(const PromptRecord& prompt, int64_t kv_head, int64_t prompt_tokens)
    : kv_head_(static_cast<size_t>(kv_head)),
      next_(prompt_tokens),
      first_entered_(prompt_tokens),
      stage_one_(&prompt.stage_one),
      positions_(of_head("kept positions", prompt.kept, kv_head_)) {}

const std::vector<int64_t>& CachePositions::enter(const StepRecord& step) {
  ++entered_;
  positions_.push_back(next_++);
  if (!step.rebuilt) return positions_;
  positions_ = of_head("merges", step.merges, kv_head_).positions;
  stage_one_ = &step.stage_one;
  first_entered_ = next_;
  return positions_;
}

const std::vector<int64_t>& CachePositions::evict(const StepRecord& step) {
  if (step.evicted.empty()) return positions_;
  const int64_t evicted = of_head("evictions", step.evicted, kv_head_);
  if (evicted == kNotEvicted) return positions_;
  const auto found = std::ranges::lower_bound(positions_, evicted);
  if (found == positions_.end() || *found != evicted) {
    throw ShapeMismatch("position " + std::to_string(evicted) + " is in no entry of the cache");
  }
  positions_.erase(found);
  return positions_;
}

const std::vector<int64_t>& CachePositions::at(std::span<const StepRecord> steps, int64_t step) {
  while (entered_ <= step) {
    if (entered_ > 0) evict(steps[entered_ - 1]);
    enter(steps[entered_]);
  }
  return positions_;
}

std::vector<int64_t> CachePositions::of_stage_one() const {
  const std::vector<int64_t>& stage_one = of_head("stage one", *stage_one_, kv_head_);
  std::vector<int64_t> chosen;
  std::ranges::copy_if(positions_, std::back_inserter(chosen), [&](int64_t position) {
    return position >= first_entered_ || std::ranges::binary_search(stage_one, position);
  });
  return chosen;
}

}  // namespace kvbound::reference
