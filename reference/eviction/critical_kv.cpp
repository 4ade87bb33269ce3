#include "critical_kv.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/parallel.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>

#include "selection.hpp"

namespace kvbound::reference {
namespace {

// Columns of the product formed at a time: kTokenBlock x kColumnBlock doubles are 1 MiB, which stays in the second-level
// cache of most server processors.
constexpr int64_t kColumnBlock = 512;

Matrix product_block(MatrixView output_projection) {
  return {kTokenBlock, std::min(kColumnBlock, output_projection.cols)};
}

// Adds |x| or x^2 of kLanes numbers.
template <Norm norm, class L>
[[gnu::always_inline]] inline void add_terms(const double* numbers, typename L::Sums& sums) {
  using Reals = typename L::Reals;
  for (size_t v = 0; v < L::kVectors; ++v) {
    Reals x;
    L::load(numbers + v * L::kWidth, x);
    if constexpr (norm == Norm::l1) {
      sums.parts[v] += (Reals)((typename L::Bits)x & ~(uint64_t{1} << 63));  // without its sign
    } else {
      sums.parts[v] += x * x;
    }
  }
}

// sums[i] += sum_j |rows[i, j]| or rows[i, j]^2
template <Norm norm>
void add_row_sums(MatrixView rows, std::span<double> sums) {
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        const auto columns = static_cast<size_t>(rows.cols);
        const size_t whole = columns / kLanes * kLanes;
        for (size_t i = 0; i < sums.size(); ++i) {
          const double* row = rows.row(static_cast<int64_t>(i)).data();
          typename L::Sums terms;
          for (size_t j = 0; j < whole; j += kLanes) add_terms<norm, L>(row + j, terms);
          if (whole < columns) {
            double rest[kLanes] = {};
            std::copy(row + whole, row + columns, rest);
            add_terms<norm, L>(rest, terms);
          }
          sums[i] += terms.total();
        }
      });
}

// The norms of one block of tokens. projected: product_block, overwritten.
template <Norm norm>
void block_norms(const TokenBlock& block, MatrixView output_projection, Matrix& projected,
                 std::span<double> norms) {
  std::ranges::fill(norms, 0.0);
  for (int64_t first = 0; first < output_projection.cols; first += kColumnBlock) {
    const int64_t columns = std::min(kColumnBlock, output_projection.cols - first);
    const MutableMatrixView product = projected.view().middle_cols(0, columns);
    multiply(block.rows, output_projection.middle_cols(first, columns), product);
    add_row_sums<norm>(product, norms);
  }
  if constexpr (norm == Norm::l2) {
    for (double& entry : norms) entry = std::sqrt(entry);
  }
  require_finite("projected_value_norms", norms);
}

void block_norms(MatrixView values, int64_t block_index, MatrixView output_projection, Norm norm,
                 Matrix& projected, std::span<double> all_norms) {
  const TokenBlock block(values, block_index);
  const auto norms = all_norms.subspan(static_cast<size_t>(block.first), static_cast<size_t>(block.count));
  if (norm == Norm::l1) {
    block_norms<Norm::l1>(block, output_projection, projected, norms);
  } else {
    block_norms<Norm::l2>(block, output_projection, projected, norms);
  }
}

}  // namespace

std::vector<double> projected_value_norms(MatrixView values, MatrixView output_projection, Norm norm) {
  require_equal("columns of values", values.cols, "rows of output_projection", output_projection.rows);
  std::vector<double> norms(static_cast<size_t>(values.rows));
  Matrix projected = product_block(output_projection);
  for (int64_t b = 0; b < token_blocks(values.rows); ++b) {
    block_norms(values, b, output_projection, norm, projected, norms);
  }
  return norms;
}

Matrix projected_value_norms(const LayerShape& shape, TensorView values, MatrixView output_projection,
                             Norm norm) {
  require_equal("slices of values", values.slices, "kv_heads", shape.kv_heads);
  require_equal("rows of output_projection", output_projection.rows, "query_heads * head_dim",
                shape.query_heads * shape.head_dim);
  require_equal("columns of values", values.cols, "head_dim", shape.head_dim);
  Matrix norms(shape.query_heads, values.rows);
  const int64_t blocks = token_blocks(values.rows);
  parallel_for(
      shape.query_heads * blocks, [&] { return product_block(output_projection); },
      [&](Matrix& projected, int64_t piece) {
        const int64_t head = piece / blocks;
        const MatrixView projection = output_projection.middle_rows(head * shape.head_dim, shape.head_dim);
        block_norms(values.slice(shape.kv_head_of(head)), piece % blocks, projection, norm, projected,
                    norms.row(head));
      });
  return norms;
}

std::vector<double> stage_two_scores(MatrixView head_scores, MatrixView norms, double epsilon,
                                     GqaProduct gqa) {
  require_equal("query heads of the scores", head_scores.rows, "query heads of the norms", norms.rows);
  require_equal("entries of the scores", head_scores.cols, "entries of the norms", norms.cols);
  const auto group_size = static_cast<double>(head_scores.rows);
  std::vector<double> scores(static_cast<size_t>(head_scores.cols));
  for (int64_t j = 0; j < head_scores.cols; ++j) {
    double products = 0;
    double attention = 0;
    double norm = 0;
    for (int64_t h = 0; h < head_scores.rows; ++h) {
      products += (head_scores(h, j) + epsilon) * norms(h, j);
      attention += head_scores(h, j);
      norm += norms(h, j);
    }
    scores[static_cast<size_t>(j)] = gqa == GqaProduct::mean_of_products
                                         ? products / group_size
                                         : (attention / group_size + epsilon) * (norm / group_size);
  }
  return scores;
}

TwoStageSelection select_critical(VectorView attention_score, VectorView stage_two_score, int64_t k,
                                  int64_t stage_one_count) {
  require_equal("attention scores", static_cast<int64_t>(attention_score.size()), "stage-two scores",
                static_cast<int64_t>(stage_two_score.size()));
  if (stage_one_count < 0 || stage_one_count > k) {
    throw ShapeMismatch("stage one of " + std::to_string(stage_one_count) + " entries is outside 0.." +
                        std::to_string(k) + ", the entries selected");
  }
  TwoStageSelection selection;
  selection.stage_one = select_top(attention_score, stage_one_count);
  std::vector<int64_t> others;
  std::vector<double> scores;
  auto next = selection.stage_one.begin();
  for (int64_t i = 0; i < static_cast<int64_t>(stage_two_score.size()); ++i) {
    if (next != selection.stage_one.end() && *next == i) {
      ++next;
      continue;
    }
    others.push_back(i);
    scores.push_back(stage_two_score[static_cast<size_t>(i)]);
  }
  selection.selected = selection.stage_one;
  for (const int64_t i : select_top(scores, k - stage_one_count)) {
    selection.selected.push_back(others[static_cast<size_t>(i)]);
  }
  std::ranges::sort(selection.selected);
  return selection;
}

int64_t adaptive_stage_one(MatrixView attention_weights, std::span<const int64_t> always_kept,
                           std::span<const int64_t> ranked) {
  const auto k = static_cast<int64_t>(ranked.size());
  int64_t count = 0;
  for (int64_t row = 0; row < attention_weights.rows; ++row) {
    double mass = 0;
    for (const int64_t position : always_kept) mass += attention_weights(row, position);
    int64_t needed = 0;
    while (needed < k && !(mass > 0.5)) mass += attention_weights(row, ranked[static_cast<size_t>(needed++)]);
    if (!(mass > 0.5)) return k;
    count = std::max(count, needed);
  }
  return count;
}

}  // namespace kvbound::reference
