#include "prompt_selection.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <variant>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/theta_sweep.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::reference {
namespace {

std::vector<int64_t> merged(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> both;
  std::ranges::merge(a, b, std::back_inserter(both));
  return both;
}

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

class PromptSelection {
 public:
  PromptSelection(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                  std::span<const int64_t> budgets, LayerScores& known, OperationTimes* times)
      : layer_(layer),
        policy_(policy),
        ranking_(ranking),
        budgets_(budgets),
        kept_(candidates_kept(ranking, budgets)),
        known_(known),
        times_(times) {}

  PromptRecord run() {
    record_.score_positions = ranking_.scored;
    record_.score = ranking_.scores;
    std::visit([&](const auto& one) { select(one); }, policy_.selection);
    return std::move(record_);
  }

 private:
  void select(const TopK&) {
    timed(times_, "selection", [&] {
      record_.kept = rules_of(policy_.score).change
                         ? top_k()
                         : std::visit([&](const auto& host) { return top_k(host); }, policy_.host);
    });
  }

  std::vector<std::vector<int64_t>> top_k(const SnapKv& host) {
    return select_snap_kv(layer_, host, ranking_.rules, budgets_, known_).kept;
  }
  std::vector<std::vector<int64_t>> top_k(const H2o&) { return top_k(); }
  std::vector<std::vector<int64_t>> top_k(const Tova&) { return top_k(); }
  std::vector<std::vector<int64_t>> top_k(const StreamingLlm&) { return top_k(); }
  std::vector<std::vector<int64_t>> top_k(const RandomHost&) { return top_k(); }
  std::vector<std::vector<int64_t>> top_k(const Given&) { return top_k(); }

  // The candidates of largest score, and the always-kept entries.
  std::vector<std::vector<int64_t>> top_k() const {
    std::vector<std::vector<int64_t>> kept;
    for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
      kept.push_back(kept_of(select_top(ranking_.candidate_scores(ranking_.scores, g), kept_[g])));
    }
    return kept;
  }

  // All entries but the first removals of the greedy order.
  void select(const Greedy&) {
    const auto& removals = known_.removals(layer_, ranking_.rules.window, ranking_.candidates);
    for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
      const int64_t leaving = ranking_.candidates - kept_[g];
      const std::vector<int64_t>& order = removals[g];
      std::vector<int64_t> kept = range(0, layer_.prompt_tokens());
      for (int64_t i = 0; i < leaving; ++i) kept[order[i]] = -1;
      std::erase(kept, -1);
      record_.kept.push_back(std::move(kept));
    }
  }

  void select(const Critical& options) {
    record_.projected_value_norms = known_.norms(layer_, options.norm);
    CriticalKvSelection selection = critical(options);
    for (const TwoStageSelection& head : selection.heads) {
      record_.stage_one.push_back(kept_of(head.stage_one));
      record_.kept.push_back(kept_of(head.selected));
    }
    record_.stage_two_score = std::move(selection.stage_two_scores);
  }

  void select(const ThetaSweep& options) {
    record_.projected_value_norms = known_.norms(layer_, options.norm);
    const CriticalKvSelection rivals = critical(options);
    const Matrix weights =
        window_mean(known_.attention(layer_, ranking_.rules.window), ranking_.rules.window);
    const std::span<const int64_t> candidates = ranking_.candidate_positions();
    const Matrix candidate_weights = columns_of(weights, candidates);
    record_.kept.resize(layer_.shape.kv_heads);
    const auto select_head = [&](int64_t g) {
      const int64_t k = kept_[g];
      const MatrixView attention = layer_.shape.group_rows(weights, g);
      const ThetaSweepInput input{
          attention,
          layer_.shape.group_rows(*record_.projected_value_norms, g),
          layer_.shape.group_rows(candidate_weights, g),
          candidates,
          ranking_.always_kept,
          {select_top(ranking_.candidate_scores(ranking_.scores, g), k), rivals.heads[g].selected}};
      record_.kept[g] = kept_of(select_theta_sweep(input, k));
    };
    timed(times_, "selection", [&] { parallel_for(layer_.shape.kv_heads, select_head); });
  }

  // CriticalKV's two stages.
  CriticalKvSelection critical(const TwoStage& options) {
    const Matrix norms = columns_of(known_.norms(layer_, options.norm), ranking_.scored);
    return critical_kv(
        {layer_, ranking_.rules.window, ranking_.always_kept, ranking_.scored, ranking_.first_candidate,
         ranking_.candidates, ranking_.scores, ranking_.head_scores, norms},
        options, kept_, times_);
  }

  // The positions of the selected candidates and of the always-kept entries, ascending.
  std::vector<int64_t> kept_of(std::span<const int64_t> selected) const {
    return merged(ranking_.positions_of(selected), ranking_.always_kept);
  }

  const LayerView& layer_;
  const Policy& policy_;
  const Ranking& ranking_;
  std::span<const int64_t> budgets_;  // [kv_heads]
  std::vector<int64_t> kept_;         // [kv_heads]: number of candidates to select
  LayerScores& known_;
  OperationTimes* times_;
  PromptRecord record_;
};

}  // namespace

std::vector<int64_t> candidates_kept(const Ranking& ranking, std::span<const int64_t> budgets) {
  std::vector<int64_t> kept(budgets.begin(), budgets.end());
  for (int64_t& count : kept) count -= std::ssize(ranking.always_kept);
  return kept;
}

PromptRecord select_prompt(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                           std::span<const int64_t> budgets, LayerScores& known, OperationTimes* times) {
  return PromptSelection(layer, policy, ranking, budgets, known, times).run();
}

}  // namespace kvbound::reference
