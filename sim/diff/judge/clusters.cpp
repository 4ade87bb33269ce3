#include "clusters.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/session.hpp>

#include "target_rule.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// The clusters of the kept entries, given where every entry belongs.
reference::MergeTargets targets_of(const Positions& kept, Positions target_of) {
  std::map<int64_t, Positions> members;
  for (const int64_t position : kept) members[position];
  for (int64_t i = 0; i < std::ssize(target_of); ++i) {
    const auto cluster = members.find(target_of[i]);
    if (target_of[i] != i && cluster != members.end()) cluster->second.push_back(i);
  }
  reference::MergeTargets targets{kept, {}, std::move(target_of)};
  for (auto& [into, from] : members) {
    if (!from.empty()) targets.clusters.push_back({into, std::move(from), {}});
  }
  return targets;
}

std::string joined(int64_t target) {
  return target == kNotMerged ? "was dropped" : fmt::format("joined the cluster of {}", target);
}

// Judges the entries of one KV head one after the other, in any order.
class EntryJudge {
 public:
  EntryJudge(std::span<const int64_t> claimed, const Positions& own, const Positions& index)
      : claimed_(claimed), own_(own), index_(index), choices_(own.size()), forced_(own) {}

  int64_t claimed(int64_t i) const { return claimed_[i]; }
  int64_t tokens() const { return std::ssize(own_); }

  // outcomes: whether only some targets would have been legal
  void accept(int64_t i, bool judged) {
    choices_[i] = claimed(i) == own_[i] ? same_choice(own_[i]) : near_tie_choice(claimed(i));
    choices_[i].judged = judged;
    forced_[i] = claimed(i);
  }
  // usable: whether the replay can follow the claim
  void refuse(int64_t i, bool usable, const std::string& why) {
    if (usable) forced_[i] = claimed(i);
    Positions index = index_;
    index.back() = i;
    choices_[i] = wrong_entry(std::move(index), forced_[i], claimed(i), own_[i],
                              fmt::format("position {} {}, {}", i, joined(claimed(i)), why));
  }
  // An entry that is certain to belong to itself.
  void judge_own(int64_t i) {
    if (claimed(i) == i) {
      accept(i, true);
    } else {
      refuse(i, false, "but it is kept");
    }
  }

  TargetsJudgement result(const Positions& kept) {
    return {std::move(choices_), targets_of(kept, std::move(forced_))};
  }

 private:
  std::span<const int64_t> claimed_;
  const Positions& own_;
  Positions index_;
  std::vector<Choice> choices_;
  Positions forced_;
};

bool contains(const Positions& ascending, int64_t position) {
  return std::ranges::binary_search(ascending, position);
}

// The parents that rounding allows each candidate to have, as indices, and whether it may have none.
struct Parents {
  std::vector<Positions> possible;
  std::vector<bool> may_be_root;
};

Parents parents_of(MatrixView keys, const MergingCandidates& candidates, const SimilarTarget& target,
                   const reference::Arithmetic& arithmetic) {
  const UncertainScores& scores = candidates.scores;
  const auto count = std::ssize(scores.scores);
  const double limit = target.threshold ? target.threshold->value() : -kInfinity;
  const auto may_beat = [&](int64_t j, int64_t i) {
    return !(scores.scores[i] - scores.scores[j] >= scores.errors[i] + scores.errors[j]);
  };
  const auto surely_beats = [&](int64_t j, int64_t i) {
    return scores.scores[j] - scores.scores[i] > scores.errors[i] + scores.errors[j];
  };
  const Positions all(candidates.positions.begin(), candidates.positions.end());
  Parents parents{std::vector<Positions>(count), std::vector<bool>(count)};
  visit_uncertain_cosines(keys, all, all, arithmetic, [&](int64_t i, VectorView cosines, VectorView errors) {
    double surely = -kInfinity;
    for (int64_t j = 0; j < count; ++j) {
      if (j != i && surely_beats(j, i)) surely = std::max(surely, cosines[j] - errors[j]);
    }
    for (int64_t j = 0; j < count; ++j) {
      const double most = std::min(1.0, cosines[j] + errors[j]);
      if (j != i && may_beat(j, i) && most > limit && most >= surely) parents.possible[i].push_back(j);
    }
    parents.may_be_root[i] = surely <= limit;
  });
  return parents;
}

// Which candidates' roots follow from parents that rounding allows. claimed: roots as indices;
// outside 0..n-1 explains nothing
std::vector<bool> explained(const Parents& parents, const Positions& claimed) {
  const auto count = std::ssize(claimed);
  std::vector<Positions> children(count);
  std::vector<bool> known(count);
  Positions next;
  for (int64_t i = 0; i < count; ++i) {
    for (const int64_t j : parents.possible[i]) {
      if (claimed[j] == claimed[i] && claimed[i] != i) children[j].push_back(i);
    }
    known[i] = claimed[i] == i && parents.may_be_root[i];
    if (known[i]) next.push_back(i);
  }
  while (!next.empty()) {
    const int64_t parent = next.back();
    next.pop_back();
    for (const int64_t child : children[parent]) {
      if (known[child]) continue;
      known[child] = true;
      next.push_back(child);
    }
  }
  return known;
}

}  // namespace

TargetsJudgement judge_evict_first(MatrixView keys, const Positions& kept, const SimilarTarget& target,
                                   const reference::Arithmetic& arithmetic, std::span<const int64_t> claimed,
                                   const Positions& index) {
  const Positions own = reference::evict_first(keys, kept, target).target_of;
  EntryJudge judge(claimed, own, index);
  for (const int64_t position : kept) judge.judge_own(position);
  const Positions leaving = reference::others_than(kept, keys.rows);
  visit_uncertain_cosines(
      keys, leaving, kept, arithmetic, [&](int64_t i, VectorView cosines, VectorView errors) {
        const TargetRule rule(target, cosines, errors);
        const int64_t position = leaving[i], into = judge.claimed(position);
        const auto at = static_cast<size_t>(std::ranges::lower_bound(kept, into) - kept.begin());
        const bool is_kept = contains(kept, into);
        if (into != kNotMerged && !is_kept) {
          judge.refuse(position, false, "which is not kept");
        } else if (is_kept ? rule.may_merge_with(at) : rule.may_be_dropped()) {
          judge.accept(position, possible_outcomes(rule, kept.size()) <= std::ssize(kept));
        } else {
          judge.refuse(position, true,
                       fmt::format("where the most similar key, that of {}, decides", own[position]));
        }
      });
  return judge.result(kept);
}

TargetsJudgement judge_merge_first(MatrixView keys, const Positions& kept,
                                   const MergingCandidates& candidates, const SimilarTarget& target,
                                   const reference::Arithmetic& arithmetic, std::span<const int64_t> claimed,
                                   const Positions& index) {
  const auto count = std::ssize(candidates.scores.scores);
  const Positions others = reference::others_than(candidates.positions, keys.rows);
  const Positions own = reference::merge_first(keys, candidates.scores.scores, others, 0, target).target_of;
  EntryJudge judge(claimed, own, index);
  const Parents parents = parents_of(keys, candidates, target, arithmetic);
  Positions roots;
  for (const int64_t position : candidates.positions) roots.push_back(candidates.index_of(claimed[position]));
  const std::vector<bool> known = explained(parents, roots);
  for (int64_t position = 0; position < judge.tokens(); ++position) {
    const int64_t i = candidates.index_of(position);
    if (i < 0) {
      judge.judge_own(position);
    } else if (known[i]) {
      judge.accept(position, std::ssize(parents.possible[i]) < count - 1);
    } else {
      const bool is_root = roots[i] >= 0 && roots[roots[i]] == roots[i];
      judge.refuse(position, is_root,
                   fmt::format("but chains of most similar keys lead to {}", own[position]));
    }
  }
  return judge.result(kept);
}

RootScores root_scores(const MergingCandidates& candidates, std::span<const int64_t> target_of,
                       const reference::Arithmetic& arithmetic) {
  struct Sum {
    double sum = 0, size = 0, error = 0;
    int64_t count = 0;
  };
  const auto count = std::ssize(candidates.scores.scores);
  std::map<int64_t, Sum> sums;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t root = candidates.index_of(target_of[candidates.positions[i]]);
    if (root < 0) continue;
    Sum& sum = sums[root];
    sum.sum += candidates.scores.scores[i];
    sum.size += std::abs(candidates.scores.scores[i]);
    sum.error += candidates.scores.errors[i];
    ++sum.count;
  }
  RootScores result;
  for (const auto& [root, sum] : sums) {
    result.roots.push_back(candidates.positions[root]);
    result.sums.push_back(sum.sum);
    result.errors.push_back(sum.error + reference::sum_rounding(sum.count, arithmetic.in_any_order()) *
                                            (sum.size + sum.error));
  }
  return result;
}

}  // namespace kvbound::sim
