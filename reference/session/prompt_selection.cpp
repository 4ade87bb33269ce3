#include "prompt_selection.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <variant>

#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/eviction/theta_sweep.hpp>
#include <kvbound/reference/numerics/parallel.hpp>

namespace kvbound::reference {
namespace {

std::vector<int64_t> merged(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> both;
  std::ranges::merge(a, b, std::back_inserter(both));
  return both;
}

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

class PromptSelection {
 public:
  PromptSelection(const LayerView& layer, const Ranking& ranking, std::span<const int64_t> budgets,
                  LayerScores& known, OperationTimes* times)
      : layer_(layer),
        ranking_(ranking),
        kept_(candidates_kept(ranking, budgets)),
        known_(known),
        times_(times) {}

  PromptRecord run(const Selection& selection) {
    record_.score_positions = range(0, ranking_.rules.scored);
    record_.score = ranking_.scores;
    std::visit([&](const auto& one) { select(one); }, selection);
    return std::move(record_);
  }

 private:
  void select(const TopK&) {
    timed(times_, "selection", [&] {
      for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
        const std::vector<int64_t> top =
            select_top(ranking_.candidate_scores(ranking_.scores, g), kept_[static_cast<size_t>(g)]);
        record_.kept.push_back(merged(ranking_.positions_of(top), ranking_.always_kept));
      }
    });
  }

  // Who is not removed stays.
  void select(const Greedy&) {
    const auto& removals = known_.removals(layer_, ranking_.rules.window, ranking_.candidates);
    for (int64_t g = 0; g < layer_.shape.kv_heads; ++g) {
      const int64_t leaving = ranking_.candidates - kept_[static_cast<size_t>(g)];
      const std::vector<int64_t>& order = removals[static_cast<size_t>(g)];
      std::vector<int64_t> kept = range(0, layer_.prompt_tokens());
      for (int64_t i = 0; i < leaving; ++i) kept[static_cast<size_t>(order[static_cast<size_t>(i)])] = -1;
      std::erase(kept, -1);
      record_.kept.push_back(std::move(kept));
    }
  }

  void select(const Critical& options) {
    record_.projected_value_norms = known_.norms(layer_, options.norm);
    record_.stage_two_score = stage_two_scores_of(options);
    record_.kept.resize(static_cast<size_t>(layer_.shape.kv_heads));
    record_.stage_one.resize(record_.kept.size());
    select_per_head(layer_.shape.kv_heads, [&](int64_t g) {
      const TwoStageSelection selection =
          critical(options, *record_.stage_two_score, kept_[static_cast<size_t>(g)], g);
      const auto index = static_cast<size_t>(g);
      record_.stage_one[index] = merged(ranking_.positions_of(selection.stage_one), ranking_.always_kept);
      record_.kept[index] = merged(ranking_.positions_of(selection.selected), ranking_.always_kept);
    });
  }

  void select(const ThetaSweep& options) {
    record_.projected_value_norms = known_.norms(layer_, options.norm);
    const Matrix stage_two = stage_two_scores_of(options);
    const Matrix weights =
        window_mean(known_.attention(layer_, ranking_.rules.window), ranking_.rules.window);
    const std::vector<int64_t> candidates = range(ranking_.first_candidate, ranking_.candidates);
    record_.kept.resize(static_cast<size_t>(layer_.shape.kv_heads));
    select_per_head(layer_.shape.kv_heads, [&](int64_t g) {
      const int64_t k = kept_[static_cast<size_t>(g)];
      const auto group = [&](MatrixView rows) {
        return rows.middle_rows(g * layer_.shape.group_size(), layer_.shape.group_size());
      };
      const MatrixView attention = group(weights);
      const ThetaSweepInput input{attention,
                                  group(*record_.projected_value_norms),
                                  attention.middle_cols(ranking_.first_candidate, ranking_.candidates),
                                  candidates,
                                  ranking_.always_kept,
                                  {select_top(ranking_.candidate_scores(ranking_.scores, g), k),
                                   critical(options, stage_two, k, g).selected}};
      record_.kept[static_cast<size_t>(g)] =
          merged(ranking_.positions_of(select_theta_sweep(input, k)), ranking_.always_kept);
    });
  }

  template <class Select>
  void select_per_head(int64_t kv_heads, const Select& select) {
    timed(times_, "selection", [&] { parallel_for(kv_heads, select); });
  }

  // CriticalKV's two stages for KV head g.
  TwoStageSelection critical(const TwoStage& options, const Matrix& stage_two_score, int64_t k,
                             int64_t g) const {
    const VectorView score = ranking_.candidate_scores(ranking_.scores, g);
    const int64_t stage_one_count =
        options.alpha ? floor_of_product(*options.alpha, k) : adaptive_count(score, k, g);
    return select_critical(score, ranking_.candidate_scores(stage_two_score, g), k, stage_one_count);
  }

  int64_t adaptive_count(VectorView score, int64_t k, int64_t g) const {
    const std::vector<int64_t> ranked = ranking_.positions_of(rank_top(score, k));
    int64_t count = 0;
    visit_window_attention(layer_, g, ranking_.rules.window, [&](int64_t, VectorView weights) {
      const MatrixView row(weights.data(), 1, static_cast<int64_t>(weights.size()));
      count = std::max(count, adaptive_stage_one(row, ranking_.always_kept, ranked));
    });
    return count;
  }

  Matrix stage_two_scores_of(const TwoStage& options) {
    const MatrixView norms = known_.norms(layer_, options.norm).view().middle_cols(0, ranking_.rules.scored);
    const int64_t group_size = layer_.shape.group_size();
    Matrix scores(layer_.shape.kv_heads, norms.cols);
    timed(times_, "stage_two_scores", [&] {
      for (int64_t g = 0; g < scores.rows(); ++g) {
        const std::vector<double> row =
            stage_two_scores(ranking_.head_scores.view().middle_rows(g * group_size, group_size),
                             norms.middle_rows(g * group_size, group_size), options.epsilon, options.gqa);
        std::ranges::copy(row, scores.row(g).begin());
      }
    });
    return scores;
  }

  const LayerView& layer_;
  const Ranking& ranking_;
  std::vector<int64_t> kept_;  // [kv_heads]: candidates that stay
  LayerScores& known_;
  OperationTimes* times_;
  PromptRecord record_;
};

}  // namespace

std::vector<int64_t> candidates_kept(const Ranking& ranking, std::span<const int64_t> budgets) {
  std::vector<int64_t> kept(budgets.begin(), budgets.end());
  for (int64_t& count : kept) count -= static_cast<int64_t>(ranking.always_kept.size());
  return kept;
}

PromptRecord select_prompt(const LayerView& layer, const Policy& policy, const Ranking& ranking,
                           std::span<const int64_t> budgets, LayerScores& known, OperationTimes* times) {
  return PromptSelection(layer, ranking, budgets, known, times).run(policy.selection);
}

}  // namespace kvbound::reference
