#include "allocation.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <variant>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/eviction/allocation.hpp>

#include "prompt_errors.hpp"

namespace kvbound::sim {
namespace {

using Counts = std::vector<int64_t>;

// Upper limit on the number of splits that the search tries.
constexpr int64_t kMostTries = 200000;

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// The least and the largest possible number of each head's candidates among the largest scores.
struct FoundRange {
  Counts least, most;
};

FoundRange found_at(const UncertainScores& scores, size_t heads, double limit) {
  FoundRange range{Counts(heads), Counts(heads)};
  const size_t candidates = scores.scores.size() / heads;
  for (size_t i = 0; i < scores.scores.size(); ++i) {
    range.least[i / candidates] += scores.scores[i] - scores.errors[i] > limit;
    range.most[i / candidates] += scores.scores[i] + scores.errors[i] >= limit;
  }
  return range;
}

// Searches the counts per head that one limit allows for one that yields the claimed split.
class Search {
 public:
  Search(const AdaKv& options, std::span<const int64_t> candidates, std::span<const int64_t> shared)
      : options_(options), candidates_(candidates), shared_(shared), found_(candidates.size()) {}

  // Whether some counts within the range yield the claimed split.
  bool explains(const FoundRange& range) { return tries(range, 0, total(candidates_)); }
  bool gave_up() const { return tries_ > kMostTries; }

 private:
  bool tries(const FoundRange& range, size_t head, int64_t rest) {
    if (head == found_.size()) {
      ++tries_;
      return rest == 0 && std::ranges::equal(reference::adakv_shares(options_, found_, candidates_), shared_);
    }
    for (int64_t count = range.least[head]; count <= range.most[head] && count <= rest; ++count) {
      if (!may_lead(head, count)) continue;
      found_[head] = count;
      if (tries(range, head + 1, rest - count)) return true;
      if (gave_up()) return false;
    }
    return false;
  }

  // Rounding to whole entries changes a share by less than 1, and double precision by less than 1e-3.
  bool may_lead(size_t head, int64_t found) const {
    const double safe = options_.safeguard.value();
    const double share =
        (1 - safe) * static_cast<double>(found) + safe * static_cast<double>(candidates_[head]);
    return std::abs(share - static_cast<double>(shared_[head])) < 1.001;
  }

  const AdaKv& options_;
  std::span<const int64_t> candidates_, shared_;
  Counts found_;
  int64_t tries_ = 0;
};

// Candidate scores of all heads, one head after the other.
struct AllScores {
  std::vector<double> scores, errors;
  UncertainScores view() const { return {scores, errors}; }
};

AllScores candidates_of(const PromptErrors& errors) {
  AllScores all;
  for (int64_t g = 0; g < errors.ranking.scores.rows(); ++g) {
    std::ranges::copy(errors.ranking.candidate_scores(errors.ranking.scores, g),
                      std::back_inserter(all.scores));
    std::ranges::copy(errors.ranking.candidate_scores(errors.score, g), std::back_inserter(all.errors));
  }
  return all;
}

// One case per allocation.
struct AllocationJudge {
  const LayerView& layer;
  const TestedImplementation& implementation;
  const std::vector<std::vector<int64_t>>* kept;

  // Kept sets that were given have budgets of their own.
  AllocationJudgement operator()(const Uniform&) const {
    const HostRules host = rules_of(implementation.policy.host, layer.prompt_tokens(), 0);
    AllocationJudgement judgement = as_shared();
    if (!host.given || !host.given->keeps()) return judgement;
    std::ranges::transform(host.given->kept, judgement.budgets.begin(),
                           [](const auto& positions) { return std::ssize(positions); });
    return judgement;
  }
  AllocationJudgement operator()(const Pyramid&) const { return as_shared(); }
  AllocationJudgement operator()(const HeadKv&) const { return as_shared(); }
  AllocationJudgement operator()(const AdaKv& adakv) const;

 private:
  AllocationJudgement as_shared() const {
    AllocationJudgement judgement;
    for (int64_t g = 0; g < layer.shape.kv_heads; ++g) judgement.budgets.push_back(implementation.budget(g));
    return judgement;
  }
};

AllocationJudgement AllocationJudge::operator()(const AdaKv& adakv) const {
  AllocationJudgement judgement = as_shared();
  TestedImplementation by_attention = implementation;
  by_attention.policy.score = AttentionScore{};
  by_attention.policy.selection = TopK{};
  const PromptErrors errors(layer, by_attention, {});
  const reference::Ranking& ranking = errors.ranking;
  const auto always_kept = std::ssize(ranking.always_kept);
  Counts candidates = judgement.budgets;
  for (int64_t& count : candidates) count -= always_kept;
  const Counts own = reference::adakv_budgets(
      adakv, ranking.scores.view().middle_cols(ranking.first_candidate, ranking.candidates), candidates);
  Counts shared = own;
  for (size_t g = 0; kept && g < kept->size(); ++g) {
    shared[g] = static_cast<int64_t>((*kept)[g].size()) - always_kept;
  }
  int64_t moved = 0;
  for (size_t g = 0; g < own.size(); ++g) moved += std::abs(shared[g] - own[g]);
  if (moved > 0) {
    switch (explain(adakv, candidates_of(errors).view(), candidates, shared)) {
      case Explanation::found:
        judgement.near_tie_swaps = moved / 2;
        break;
      case Explanation::unknown:
        judgement.undecided = moved / 2;
        break;
      case Explanation::none:
        shared = own;
    }
  }
  for (size_t g = 0; g < own.size(); ++g) judgement.budgets[g] = shared[g] + always_kept;
  return judgement;
}

}  // namespace

Explanation explain(const AdaKv& options, const UncertainScores& scores, std::span<const int64_t> candidates,
                    std::span<const int64_t> shared) {
  const int64_t count = total(candidates);
  if (total(shared) != count) return Explanation::none;
  if (count == 0) return std::ranges::equal(shared, candidates) ? Explanation::found : Explanation::none;
  const auto finite = [](double error) { return std::isfinite(error); };
  if (!std::ranges::all_of(scores.errors, finite)) return Explanation::unknown;
  std::vector<double> limits(scores.scores.size());
  std::ranges::transform(scores.scores, scores.errors, limits.begin(), std::plus());
  std::ranges::sort(limits, std::ranges::greater());
  Search search(options, candidates, shared);
  for (size_t i = static_cast<size_t>(count) - 1; i < limits.size(); ++i) {
    const FoundRange range = found_at(scores, candidates.size(), limits[i]);
    if (total(range.least) > count) break;
    if (search.explains(range)) return Explanation::found;
    if (search.gave_up()) return Explanation::unknown;
  }
  return Explanation::none;
}

AllocationJudgement judge_allocation(const LayerView& layer, const TestedImplementation& implementation,
                                     const std::vector<std::vector<int64_t>>* kept) {
  return std::visit(AllocationJudge{layer, implementation, kept}, implementation.policy.allocation);
}

}  // namespace kvbound::sim
