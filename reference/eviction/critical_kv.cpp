#include "critical_kv.hpp"

#include <algorithm>
#include <string>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/row_norms.hpp>

#include "selection.hpp"
#include "window_logits.hpp"

namespace kvbound::reference {
namespace {

// The chosen indices and those of the `count` largest scores among the others; ascending.
std::vector<int64_t> with_top_of_others(std::span<const int64_t> chosen, VectorView scores, int64_t count) {
  std::vector<int64_t> others;
  std::vector<double> their_scores;
  auto next = chosen.begin();
  for (int64_t i = 0; i < std::ssize(scores); ++i) {
    if (next != chosen.end() && *next == i) {
      ++next;
      continue;
    }
    others.push_back(i);
    their_scores.push_back(scores[i]);
  }
  std::vector<int64_t> all(chosen.begin(), chosen.end());
  for (const int64_t i : select_top(their_scores, count)) all.push_back(others[i]);
  std::ranges::sort(all);
  return all;
}

// The positions of the k candidates of largest score, best first.
std::vector<int64_t> ranked_positions(const CriticalKvPrompt& prompt, VectorView scores, int64_t k) {
  std::vector<int64_t> positions = rank_top(scores, k);
  for (int64_t& position : positions) position = prompt.positions[prompt.first_candidate + position];
  return positions;
}

}  // namespace

// Algorithm 1 of the paper; the norms of its V W^O are prompt.norms.
// b, b' and b'' are its budgets, without the always-kept entries.
CriticalKvSelection critical_kv(const CriticalKvPrompt& prompt, const TwoStage& options,
                                std::span<const int64_t> k, OperationTimes* times) {
  const int64_t kv_heads = prompt.scores.rows, group_size = prompt.layer.shape.group_size();
  CriticalKvSelection result{Matrix(kv_heads, prompt.scores.cols), {}};
  result.heads.resize(kv_heads);
  // (A + epsilon) || V W^O ||_1, for a group of query heads: proofs/critical_kv.md#ckv-window.
  timed(times, "stage_two_scores", [&] {
    for (int64_t g = 0; g < kv_heads; ++g) {
      const MatrixView attention = prompt.head_scores.middle_rows(g * group_size, group_size),
                       norms = prompt.norms.middle_rows(g * group_size, group_size);
      std::ranges::copy(stage_two_scores(attention, norms, options.epsilon, options.gqa),
                        result.stage_two_scores.row(g).begin());
    }
  });
  timed(times, "selection", [&] {
    parallel_for(kv_heads, [&](int64_t g) {
      const auto candidates = [&](VectorView row) {
        return row.subspan(prompt.first_candidate, static_cast<size_t>(prompt.candidates));
      };
      const VectorView attention = candidates(prompt.scores.row(g)),
                       stage_two = candidates(result.stage_two_scores.row(g));
      TwoStageSelection& selection = result.heads[g];
      // b' = floor(alpha b), b'' = b - b'. (The paper's header prints alpha = 0.25, its text
      // and experiments use 0.5.)
      const int64_t b = k[g];
      const int64_t b_one = stage_one_count(options, b, [&] {
        return adaptive_stage_one(prompt.layer, g, prompt.window, prompt.always_kept,
                                  ranked_positions(prompt, attention, b));
      });
      // Stage 1: the b' entries of largest attention weight.
      selection.stage_one = select_top(attention, b_one);
      // Stage 2: of the other candidates, the b'' of largest (A + epsilon) || V W^O ||_1.
      selection.selected = with_top_of_others(selection.stage_one, stage_two, b - b_one);
    });
  });
  return result;
}

int64_t stage_one_count(const TwoStage& options, int64_t k, const std::function<int64_t()>& adaptive) {
  return options.alpha ? floor_of_product(*options.alpha, k) : adaptive();
}

std::vector<double> projected_value_norms(MatrixView values, MatrixView output_projection, Norm norm) {
  require_equal("columns of values", values.cols, "rows of output_projection", output_projection.rows);
  std::vector<double> norms = row_norms(values, output_projection, norm);
  require_finite("projected_value_norms", norms);
  return norms;
}

Matrix projected_value_norms(const LayerShape& shape, TensorView values, MatrixView output_projection,
                             Norm norm) {
  require_equal("slices of values", values.slices, "kv_heads", shape.kv_heads);
  require_equal("rows of output_projection", output_projection.rows, "query_heads * head_dim",
                shape.query_heads * shape.head_dim);
  require_equal("columns of values", values.cols, "head_dim", shape.head_dim);
  std::vector<RowProduct> products;  // V W^O_h
  for (int64_t h = 0; h < shape.query_heads; ++h) {
    products.push_back({values.slice(shape.kv_head_of(h)),
                        output_projection.middle_rows(h * shape.head_dim, shape.head_dim)});
  }
  Matrix norms = row_norms(products, norm);
  for (int64_t h = 0; h < shape.query_heads; ++h) require_finite("projected_value_norms", norms.row(h));
  return norms;
}

std::vector<double> stage_two_scores(MatrixView head_scores, MatrixView norms, double epsilon,
                                     GqaProduct gqa) {
  require_equal("query heads of the scores", head_scores.rows, "query heads of the norms", norms.rows);
  require_equal("entries of the scores", head_scores.cols, "entries of the norms", norms.cols);
  const auto group_size = static_cast<double>(head_scores.rows);
  std::vector<double> scores(head_scores.cols);
  for (int64_t j = 0; j < head_scores.cols; ++j) {
    double products = 0;
    double attention = 0;
    double norm = 0;
    for (int64_t h = 0; h < head_scores.rows; ++h) {
      products += (head_scores(h, j) + epsilon) * norms(h, j);
      attention += head_scores(h, j);
      norm += norms(h, j);
    }
    scores[j] = gqa == GqaProduct::mean_of_products
                    ? products / group_size
                    : (attention / group_size + epsilon) * (norm / group_size);
  }
  return scores;
}

TwoStageSelection select_critical(VectorView attention_score, VectorView stage_two_score, int64_t k,
                                  int64_t stage_one_count) {
  require_equal("attention scores", std::ssize(attention_score), "stage-two scores",
                std::ssize(stage_two_score));
  if (stage_one_count < 0 || stage_one_count > k) {
    throw ShapeMismatch("stage one of " + std::to_string(stage_one_count) + " entries is outside 0.." +
                        std::to_string(k) + ", the entries selected");
  }
  TwoStageSelection selection;
  selection.stage_one = select_top(attention_score, stage_one_count);
  selection.selected = with_top_of_others(selection.stage_one, stage_two_score, k - stage_one_count);
  return selection;
}

int64_t adaptive_stage_one(MatrixView attention_weights, std::span<const int64_t> always_kept,
                           std::span<const int64_t> ranked) {
  const auto k = std::ssize(ranked);
  int64_t count = 0;
  for (int64_t row = 0; row < attention_weights.rows; ++row) {
    double mass = 0;
    for (const int64_t position : always_kept) mass += attention_weights(row, position);
    int64_t needed = 0;
    while (needed < k && !(mass > 0.5)) mass += attention_weights(row, ranked[needed++]);
    if (!(mass > 0.5)) return k;
    count = std::max(count, needed);
  }
  return count;
}

int64_t adaptive_stage_one(const LayerView& layer, int64_t kv_head, int64_t window,
                           std::span<const int64_t> always_kept, std::span<const int64_t> ranked) {
  int64_t count = 0;
  visit_window_attention(layer, kv_head, window, [&](int64_t, VectorView weights) {
    const MatrixView row(weights.data(), 1, std::ssize(weights));
    count = std::max(count, adaptive_stage_one(row, always_kept, ranked));
  });
  return count;
}

}  // namespace kvbound::reference
