#include "session.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>

#include "attention.hpp"
#include "core/session_check.hpp"
#include "critical_kv.hpp"
#include "parallel.hpp"
#include "selection.hpp"
#include "snap_kv.hpp"
#include "theta_sweep.hpp"

namespace kvbound::reference {
namespace {

// What a host says at the prompt's end: who stays in any case, and how good the others are.
struct Ranking {
  int64_t window = 0;                // the queries that judged
  std::vector<int64_t> always_kept;  // ascending positions
  std::vector<int64_t> candidates;   // ascending positions, m of them
  Matrix attention_weights;          // [query_heads, n]: window mean, not pooled
  Matrix head_scores;                // [query_heads, m]: per query head, as the host scores (pooled)
  Matrix scores;                     // [kv_heads, m]
};

std::vector<int64_t> range(int64_t first, int64_t last) {
  std::vector<int64_t> positions(static_cast<size_t>(last - first));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

Matrix columns(MatrixView matrix, std::span<const int64_t> positions) {
  Matrix result(matrix.rows, static_cast<int64_t>(positions.size()));
  for (int64_t r = 0; r < result.rows(); ++r) {
    for (int64_t j = 0; j < result.cols(); ++j) result(r, j) = matrix(r, positions[static_cast<size_t>(j)]);
  }
  return result;
}

std::vector<int64_t> positions_of(std::span<const int64_t> indices, std::span<const int64_t> candidates) {
  std::vector<int64_t> positions;
  for (const int64_t i : indices) positions.push_back(candidates[static_cast<size_t>(i)]);
  return positions;
}

std::vector<int64_t> merged(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> both;
  std::ranges::merge(a, b, std::back_inserter(both));
  return both;
}

// One KV head's cache: rows in the order of their positions.
struct HeadCache {
  std::vector<int64_t> positions;
  Matrix keys;    // [entries, head_dim]
  Matrix values;  // [entries, head_dim]

  void append(int64_t position, VectorView key, VectorView value) {
    positions.push_back(position);
    keys.append_row(key);
    values.append_row(value);
  }
};

class ReferenceSession final : public Session {
 public:
  explicit ReferenceSession(OperationTimes* times) : times_(times) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    const Ranking ranking = std::visit([&](const auto& host) { return rank(layer, host); }, policy.host);
    PromptRecord record;
    record.score_positions = ranking.candidates;
    record.score = ranking.scores;
    std::visit([&](const auto& selection) { select(layer, ranking, selection, budgets, record); },
               policy.selection);
    timed(times_, "compaction", [&] { fill_caches(layer, record.kept); });
    return record;
  }

  StepRecord step(const StepView& view) override {
    require_consistent(view, shape_);
    StepRecord record{Matrix(shape_.query_heads, shape_.head_dim), {}};
    timed(times_, "attention", [&] {
      parallel_for(shape_.kv_heads, [&](int64_t g) {
        HeadCache& cache = caches_[static_cast<size_t>(g)];
        cache.append(next_position_, view.keys.row(g), view.values.row(g));
        attend(view, cache, g, record.output);
      });
    });
    ++next_position_;
    return record;
  }

 private:
  // The outputs of KV head g's query heads.
  void attend(const StepView& view, const HeadCache& cache, int64_t g, Matrix& outputs) const {
    const int64_t group_size = shape_.group_size();
    const Matrix output =
        attention(view.queries.middle_rows(g * group_size, group_size), cache.keys, cache.values, scale_)
            .output;
    for (int64_t i = 0; i < group_size; ++i) {
      std::ranges::copy(output.row(i), outputs.row(g * group_size + i).begin());
    }
  }

  Ranking rank(const LayerView& layer, const SnapKv& host) {
    const int64_t tokens = layer.prompt_tokens();
    Ranking ranking;
    ranking.window = host.window;
    ranking.always_kept = range(tokens - host.window, tokens);
    ranking.candidates = range(0, tokens - host.window);
    ranking.attention_weights = window_attention_of(layer, host.window);
    const MatrixView unpooled = ranking.attention_weights.view().middle_cols(0, tokens - host.window);
    ranking.head_scores = max_pool(unpooled, host.pool);
    ranking.scores = group_mean(ranking.head_scores, layer.shape.group_size());
    return ranking;
  }

  void select(const LayerView& layer, const Ranking& ranking, const TopK&, std::span<const int64_t> budgets,
              PromptRecord& record) {
    timed(times_, "selection", [&] {
      for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
        const std::vector<int64_t> top =
            select_top(ranking.scores.row(g), candidates_kept(ranking, budgets, g));
        record.kept.push_back(merged(positions_of(top, ranking.candidates), ranking.always_kept));
      }
    });
  }

  void select(const LayerView& layer, const Ranking& ranking, const Critical& options,
              std::span<const int64_t> budgets, PromptRecord& record) {
    record.projected_value_norms = norms_of(layer, options.norm);
    record.stage_two_score = stage_two_scores_of(layer, ranking, options);
    record.kept.resize(static_cast<size_t>(layer.shape.kv_heads));
    record.stage_one.resize(record.kept.size());
    select_per_head(layer.shape.kv_heads, [&](int64_t g) {
      const TwoStageSelection selection =
          critical(layer, ranking, options, *record.stage_two_score, candidates_kept(ranking, budgets, g), g);
      const auto index = static_cast<size_t>(g);
      record.stage_one[index] =
          merged(positions_of(selection.stage_one, ranking.candidates), ranking.always_kept);
      record.kept[index] = merged(positions_of(selection.selected, ranking.candidates), ranking.always_kept);
    });
  }

  void select(const LayerView& layer, const Ranking& ranking, const ThetaSweep& options,
              std::span<const int64_t> budgets, PromptRecord& record) {
    record.projected_value_norms = norms_of(layer, options.norm);
    const Matrix stage_two = stage_two_scores_of(layer, ranking, options);
    const Matrix unpooled = columns(ranking.attention_weights, ranking.candidates);
    record.kept.resize(static_cast<size_t>(layer.shape.kv_heads));
    select_per_head(layer.shape.kv_heads, [&](int64_t g) {
      const int64_t k = candidates_kept(ranking, budgets, g);
      const auto group = [&](MatrixView rows) {
        return rows.middle_rows(g * layer.shape.group_size(), layer.shape.group_size());
      };
      const ThetaSweepInput input{group(ranking.attention_weights),
                                  group(*record.projected_value_norms),
                                  group(unpooled),
                                  ranking.candidates,
                                  ranking.always_kept,
                                  {select_top(ranking.scores.row(g), k),
                                   critical(layer, ranking, options, stage_two, k, g).selected}};
      record.kept[static_cast<size_t>(g)] =
          merged(positions_of(select_theta_sweep(input, k), ranking.candidates), ranking.always_kept);
    });
  }

  template <class Select>
  void select_per_head(int64_t kv_heads, const Select& select) {
    timed(times_, "selection", [&] { parallel_for(kv_heads, select); });
  }

  // CriticalKV's two stages for KV head g.
  static TwoStageSelection critical(const LayerView& layer, const Ranking& ranking, const TwoStage& options,
                                    const Matrix& stage_two_score, int64_t k, int64_t g) {
    const VectorView score = ranking.scores.row(g);
    const int64_t stage_one_count =
        options.alpha ? floor_of_product(*options.alpha, k) : adaptive_count(layer, ranking, score, k, g);
    return select_critical(score, stage_two_score.row(g), k, stage_one_count);
  }

  static int64_t adaptive_count(const LayerView& layer, const Ranking& ranking, VectorView score, int64_t k,
                                int64_t g) {
    const std::vector<int64_t> ranked = positions_of(rank_top(score, k), ranking.candidates);
    int64_t count = 0;
    visit_window_attention(layer, g, ranking.window, [&](int64_t, VectorView weights) {
      const MatrixView row(weights.data(), 1, static_cast<int64_t>(weights.size()));
      count = std::max(count, adaptive_stage_one(row, ranking.always_kept, ranked));
    });
    return count;
  }

  Matrix stage_two_scores_of(const LayerView& layer, const Ranking& ranking, const TwoStage& options) {
    const Matrix norms = columns(norms_of(layer, options.norm), ranking.candidates);
    const int64_t group_size = layer.shape.group_size();
    Matrix scores(layer.shape.kv_heads, norms.cols());
    timed(times_, "stage_two_scores", [&] {
      for (int64_t g = 0; g < scores.rows(); ++g) {
        const std::vector<double> row = stage_two_scores(
            ranking.head_scores.view().middle_rows(g * group_size, group_size),
            norms.view().middle_rows(g * group_size, group_size), options.epsilon, options.gqa);
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
    caches_.assign(kept.size(), {});
    parallel_for(shape_.kv_heads, [&](int64_t g) {
      for (const int64_t position : kept[static_cast<size_t>(g)]) {
        caches_[static_cast<size_t>(g)].append(position, layer.keys.slice(g).row(position),
                                               layer.values.slice(g).row(position));
      }
    });
  }

  // What depends on the layer alone is computed once, however many policies and budgets are tried.
  const Matrix& window_attention_of(const LayerView& layer, int64_t window) {
    const auto [entry, is_new] = window_attention_.try_emplace(window);
    if (is_new) {
      entry->second = timed(times_, "window_attention", [&] { return window_attention(layer, window); });
    }
    return entry->second;
  }
  const Matrix& norms_of(const LayerView& layer, Norm norm) {
    const auto [entry, is_new] = norms_.try_emplace(norm);
    if (is_new) {
      entry->second = timed(times_, "projected_value_norms", [&] {
        return projected_value_norms(layer.shape, layer.values, layer.output_projection, norm);
      });
    }
    return entry->second;
  }

  OperationTimes* times_;
  LayerShape shape_;
  double scale_ = 1;
  int64_t next_position_ = 0;
  std::vector<HeadCache> caches_;               // one per KV head
  std::map<int64_t, Matrix> window_attention_;  // by window
  std::map<Norm, Matrix> norms_;
};

}  // namespace

std::unique_ptr<Session> make_session(OperationTimes* times) {
  return std::make_unique<ReferenceSession>(times);
}

}  // namespace kvbound::reference
