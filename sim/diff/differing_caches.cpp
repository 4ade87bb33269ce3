#include "differing_caches.hpp"

#include <algorithm>
#include <iterator>
#include <set>

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// One KV head's two caches from step to step. New entries enter both, so only choices make a difference.
class HeadDifference {
 public:
  // differs: whether their kept entries or clusters do
  void restart(const Positions& a, const Positions& b, bool differs) {
    only_in_one_.clear();
    std::ranges::set_symmetric_difference(a, b, std::inserter(only_in_one_, only_in_one_.end()));
    ever_ = differs;
  }
  void evict(int64_t a, int64_t b) {
    toggle(a);
    toggle(b);
    ever_ = ever_ || a != b;
  }
  void merge(int64_t a, int64_t b) { ever_ = ever_ || a != b; }

  bool now() const { return !only_in_one_.empty(); }
  bool ever() const { return ever_; }

 private:
  void toggle(int64_t position) {
    if (position >= 0 && only_in_one_.erase(position) == 0) only_in_one_.insert(position);
  }

  std::set<int64_t> only_in_one_;
  bool ever_ = false;
};

// Whether evicted entries merge.
bool merges(const FollowedChoices& choices) {
  const bool clusters =
      std::ranges::any_of(choices.target_of, [](const Positions& targets) { return !targets.empty(); });
  return clusters || (!choices.steps.empty() && !choices.steps.front().merged_into.empty());
}

}  // namespace

DifferingCaches differing_caches(const FollowedChoices& a, const FollowedChoices& b) {
  DifferingCaches caches;
  const size_t kv_heads = a.kept.size(), steps = std::min(a.steps.size(), b.steps.size());
  const bool targets = !a.target_of.empty() && !b.target_of.empty();
  std::vector<HeadDifference> heads(kv_heads);
  for (size_t g = 0; g < kv_heads; ++g) {
    caches.kept.push_back(a.kept[g] != b.kept[g]);
    caches.prompt.push_back(caches.kept[g] || (targets && a.target_of[g] != b.target_of[g]));
    heads[g].restart(a.kept[g], b.kept[g], caches.prompt[g]);
  }
  const bool by_history = merges(a);
  for (size_t t = 0; t < steps; ++t) {
    const FollowedStep &own = a.steps[t], &other = b.steps[t];
    for (size_t g = 0; g < kv_heads; ++g) {
      HeadDifference& head = heads[g];
      if (own.rebuilt()) {
        caches.rebuilt.push_back(own.kept[g] != other.kept[g] || own.target_of[g] != other.target_of[g]);
        head.restart(own.kept[g], other.kept[g], caches.rebuilt.back());
      }
      caches.attended.push_back(by_history ? head.ever() : head.now());
      caches.history.push_back(head.ever());
      if (!own.evicted.empty()) head.evict(own.evicted[g], other.evicted[g]);
      caches.left.push_back(head.ever());
      if (!own.merged_into.empty()) head.merge(own.merged_into[g], other.merged_into[g]);
      caches.merged.push_back(head.ever());
    }
  }
  return caches;
}

}  // namespace kvbound::sim
