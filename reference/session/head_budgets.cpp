#include "head_budgets.hpp"

#include <variant>

#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/eviction/allocation.hpp>

#include "prompt_selection.hpp"

namespace kvbound::reference {
namespace {

struct HeadBudgets {
  const LayerView& layer;
  const Policy& policy;
  const Ranking& ranking;
  std::span<const int64_t> budgets;
  LayerScores& known;

  std::vector<int64_t> operator()(const Uniform&) const { return {budgets.begin(), budgets.end()}; }
  std::vector<int64_t> operator()(const Pyramid&) const { return {budgets.begin(), budgets.end()}; }
  std::vector<int64_t> operator()(const HeadKv&) const { return {budgets.begin(), budgets.end()}; }
  std::vector<int64_t> operator()(const AdaKv& options) const {
    Policy by_attention = policy;
    by_attention.score = AttentionScore{};
    const Matrix scores =
        rules_of(policy.score).change ? rank(layer, by_attention, known).scores : ranking.scores;
    std::vector<int64_t> shared =
        adakv_budgets(options, scores.view().middle_cols(ranking.first_candidate, ranking.candidates),
                      candidates_kept(ranking, budgets));
    for (int64_t& budget : shared) budget += std::ssize(ranking.always_kept);
    return shared;
  }
};

}  // namespace

std::vector<int64_t> head_budgets(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                                  std::span<const int64_t> budgets, LayerScores& known) {
  return std::visit(HeadBudgets{layer, policy, ranking, budgets, known}, policy.allocation);
}

}  // namespace kvbound::reference
