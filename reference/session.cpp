#include "session.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "attention.hpp"
#include "core/session_check.hpp"
#include "critical_kv.hpp"
#include "head_cache.hpp"
#include "parallel.hpp"
#include "ranking.hpp"
#include "selection.hpp"
#include "snap_kv.hpp"
#include "streaming_llm.hpp"
#include "theta_sweep.hpp"

namespace kvbound::reference {
namespace {

std::vector<int64_t> merged(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> both;
  std::ranges::merge(a, b, std::back_inserter(both));
  return both;
}

class ReferenceSession final : public Session {
 public:
  explicit ReferenceSession(OperationTimes* times) : times_(times), known_(times) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    PromptRecord record;
    Ranking ranking;
    if (const auto* host = std::get_if<StreamingLlm>(&policy.host)) {
      for (const int64_t budget : budgets) {
        record.kept.push_back(sinks_and_newest(layer.prompt_tokens(), host->sinks, budget));
      }
    } else {
      ranking = rank(layer, policy, known_);
      record.score_positions = range(0, ranking.rules.scored);
      record.score = ranking.scores;
      std::visit([&](const auto& selection) { select(layer, ranking, selection, budgets, record); },
                 policy.selection);
    }
    timed(times_, "compaction", [&] { fill_caches(layer, record.kept); });
    if (evicts(policy.host)) begin_evicting(layer, policy, budgets, ranking, record);
    return record;
  }

  StepRecord step(const StepView& view) override {
    require_consistent(view, shape_);
    StepRecord record;
    record.output = Matrix(shape_.query_heads, shape_.head_dim);
    timed(times_, "attention", [&] {
      parallel_for(shape_.kv_heads, [&](int64_t g) {
        HeadCache& cache = caches_[static_cast<size_t>(g)];
        cache.append(next_position_, view.keys.row(g), view.values.row(g));
        attend(view, g, record.output);
      });
    });
    if (!evictions_.empty()) record.left = timed(times_, "eviction", [&] { return evict(); });
    ++next_position_;
    return record;
  }

 private:
  static std::vector<int64_t> range(int64_t first, int64_t count) {
    std::vector<int64_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), first);
    return positions;
  }

  // The outputs of KV head g's query heads; scores take in what they paid.
  void attend(const StepView& view, int64_t g, Matrix& outputs) {
    const int64_t group_size = shape_.group_size();
    const auto index = static_cast<size_t>(g);
    const MatrixView queries = view.queries.middle_rows(g * group_size, group_size);
    const HeadCache& cache = caches_[index];
    Matrix output;
    if (evictions_.empty()) {
      output = attention(queries, cache.keys, cache.values, scale_).output;
    } else {
      evictions_[index].enter(cache);
      output = evictions_[index].attend(queries, cache);
    }
    for (int64_t i = 0; i < group_size; ++i) {
      std::ranges::copy(output.row(i), outputs.row(g * group_size + i).begin());
    }
  }

  // Whoever has to leaves; the position that left, per KV head.
  std::vector<int64_t> evict() {
    std::vector<int64_t> left(evictions_.size(), -1);
    parallel_for(shape_.kv_heads, [&](int64_t g) {
      const auto index = static_cast<size_t>(g);
      HeadCache& cache = caches_[index];
      const std::optional<int64_t> leaving = evictions_[index].who_leaves(cache, next_position_);
      if (!leaving) return;
      left[index] = cache.positions[static_cast<size_t>(*leaving)];
      evictions_[index].leave(*leaving);
      cache.remove(*leaving);
    });
    return left;
  }

  void begin_evicting(const LayerView& layer, const Policy& policy, std::span<const int64_t> budgets,
                      const Ranking& ranking, const PromptRecord& record) {
    const auto group = [&](const Matrix& rows, int64_t g) {
      return rows.rows() > 0 ? rows.view().middle_rows(g * shape_.group_size(), shape_.group_size())
                             : MatrixView();
    };
    const bool needs_norms = std::holds_alternative<Critical>(policy.selection);
    const Matrix none;
    const Matrix& norms = needs_norms ? *record.projected_value_norms : none;
    std::vector<std::optional<Eviction>> evictions(caches_.size());
    timed(times_, "compaction", [&] {
      parallel_for(shape_.kv_heads, [&](int64_t g) {
        const auto index = static_cast<size_t>(g);
        evictions[index].emplace(layer, policy, g, budgets[index], group(ranking.head_scores, g),
                                 group(norms, g), caches_[index]);
      });
    });
    for (std::optional<Eviction>& eviction : evictions) evictions_.push_back(*std::move(eviction));
  }

  void select(const LayerView& layer, const Ranking& ranking, const TopK&, std::span<const int64_t> budgets,
              PromptRecord& record) {
    timed(times_, "selection", [&] {
      for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
        const std::vector<int64_t> top =
            select_top(ranking.candidate_scores(ranking.scores, g), candidates_kept(ranking, budgets, g));
        record.kept.push_back(merged(ranking.positions_of(top), ranking.always_kept));
      }
    });
  }

  // Who is not removed stays.
  void select(const LayerView& layer, const Ranking& ranking, const Greedy&, std::span<const int64_t> budgets,
              PromptRecord& record) {
    const auto& removals = known_.removals(layer, ranking.rules.window, ranking.candidates);
    for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
      const int64_t leaving = ranking.candidates - candidates_kept(ranking, budgets, g);
      const std::vector<int64_t>& order = removals[static_cast<size_t>(g)];
      std::vector<int64_t> kept = range(0, layer.prompt_tokens());
      for (int64_t i = 0; i < leaving; ++i) kept[static_cast<size_t>(order[static_cast<size_t>(i)])] = -1;
      std::erase(kept, -1);
      record.kept.push_back(std::move(kept));
    }
  }

  void select(const LayerView& layer, const Ranking& ranking, const Critical& options,
              std::span<const int64_t> budgets, PromptRecord& record) {
    record.projected_value_norms = known_.norms(layer, options.norm);
    record.stage_two_score = stage_two_scores_of(layer, ranking, options);
    record.kept.resize(static_cast<size_t>(layer.shape.kv_heads));
    record.stage_one.resize(record.kept.size());
    select_per_head(layer.shape.kv_heads, [&](int64_t g) {
      const TwoStageSelection selection =
          critical(layer, ranking, options, *record.stage_two_score, candidates_kept(ranking, budgets, g), g);
      const auto index = static_cast<size_t>(g);
      record.stage_one[index] = merged(ranking.positions_of(selection.stage_one), ranking.always_kept);
      record.kept[index] = merged(ranking.positions_of(selection.selected), ranking.always_kept);
    });
  }

  void select(const LayerView& layer, const Ranking& ranking, const ThetaSweep& options,
              std::span<const int64_t> budgets, PromptRecord& record) {
    record.projected_value_norms = known_.norms(layer, options.norm);
    const Matrix stage_two = stage_two_scores_of(layer, ranking, options);
    const Matrix weights = window_mean(known_.attention(layer, ranking.rules.window), ranking.rules.window);
    const std::vector<int64_t> candidates = range(ranking.first_candidate, ranking.candidates);
    record.kept.resize(static_cast<size_t>(layer.shape.kv_heads));
    select_per_head(layer.shape.kv_heads, [&](int64_t g) {
      const int64_t k = candidates_kept(ranking, budgets, g);
      const auto group = [&](MatrixView rows) {
        return rows.middle_rows(g * layer.shape.group_size(), layer.shape.group_size());
      };
      const MatrixView attention = group(weights);
      const ThetaSweepInput input{attention,
                                  group(*record.projected_value_norms),
                                  attention.middle_cols(ranking.first_candidate, ranking.candidates),
                                  candidates,
                                  ranking.always_kept,
                                  {select_top(ranking.candidate_scores(ranking.scores, g), k),
                                   critical(layer, ranking, options, stage_two, k, g).selected}};
      record.kept[static_cast<size_t>(g)] =
          merged(ranking.positions_of(select_theta_sweep(input, k)), ranking.always_kept);
    });
  }

  template <class Select>
  void select_per_head(int64_t kv_heads, const Select& select) {
    timed(times_, "selection", [&] { parallel_for(kv_heads, select); });
  }

  // CriticalKV's two stages for KV head g.
  static TwoStageSelection critical(const LayerView& layer, const Ranking& ranking, const TwoStage& options,
                                    const Matrix& stage_two_score, int64_t k, int64_t g) {
    const VectorView score = ranking.candidate_scores(ranking.scores, g);
    const int64_t stage_one_count =
        options.alpha ? floor_of_product(*options.alpha, k) : adaptive_count(layer, ranking, score, k, g);
    return select_critical(score, ranking.candidate_scores(stage_two_score, g), k, stage_one_count);
  }

  static int64_t adaptive_count(const LayerView& layer, const Ranking& ranking, VectorView score, int64_t k,
                                int64_t g) {
    const std::vector<int64_t> ranked = ranking.positions_of(rank_top(score, k));
    int64_t count = 0;
    visit_window_attention(layer, g, ranking.rules.window, [&](int64_t, VectorView weights) {
      const MatrixView row(weights.data(), 1, static_cast<int64_t>(weights.size()));
      count = std::max(count, adaptive_stage_one(row, ranking.always_kept, ranked));
    });
    return count;
  }

  Matrix stage_two_scores_of(const LayerView& layer, const Ranking& ranking, const TwoStage& options) {
    const MatrixView norms = known_.norms(layer, options.norm).view().middle_cols(0, ranking.rules.scored);
    const int64_t group_size = layer.shape.group_size();
    Matrix scores(layer.shape.kv_heads, norms.cols);
    timed(times_, "stage_two_scores", [&] {
      for (int64_t g = 0; g < scores.rows(); ++g) {
        const std::vector<double> row =
            stage_two_scores(ranking.head_scores.view().middle_rows(g * group_size, group_size),
                             norms.middle_rows(g * group_size, group_size), options.epsilon, options.gqa);
        std::ranges::copy(row, scores.row(g).begin());
      }
    });
    return scores;
  }

  static int64_t candidates_kept(const Ranking& ranking, std::span<const int64_t> budgets, int64_t g) {
    return budgets[static_cast<size_t>(g)] - static_cast<int64_t>(ranking.always_kept.size());
  }

  void fill_caches(const LayerView& layer, const std::vector<std::vector<int64_t>>& kept) {
    shape_ = layer.shape;
    scale_ = layer.scale;
    next_position_ = layer.prompt_tokens();
    evictions_.clear();
    caches_.assign(kept.size(), {});
    parallel_for(shape_.kv_heads, [&](int64_t g) {
      for (const int64_t position : kept[static_cast<size_t>(g)]) {
        caches_[static_cast<size_t>(g)].append(position, layer.keys.slice(g).row(position),
                                               layer.values.slice(g).row(position));
      }
    });
  }

  OperationTimes* times_;
  LayerScores known_;
  LayerShape shape_;
  double scale_ = 1;
  int64_t next_position_ = 0;
  std::vector<HeadCache> caches_;    // one per KV head
  std::vector<Eviction> evictions_;  // likewise; none for hosts that only grow
};

}  // namespace

std::unique_ptr<Session> make_session(OperationTimes* times) {
  return std::make_unique<ReferenceSession>(times);
}

}  // namespace kvbound::reference
