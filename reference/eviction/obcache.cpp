#include "obcache.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/column_blocks.hpp>
#include <kvbound/reference/numerics/elementwise.hpp>

#include "obcache_terms.hpp"
#include "output_change.hpp"
#include "scored_queries.hpp"
#include "window_logits.hpp"

namespace kvbound::reference {
namespace {

// When entry j's key is zeroed, its logit becomes 0 and the softmax denominator
// changes by the factor q = 1 - A + e^-LSE. q is kept as (1 - A) entries + slot with
// slot / entries = e^-LSE and neither number above 1, so that e^-LSE cannot overflow.
struct SlotShares {
  explicit SlotShares(double log_sum_exp)
      : entries(log_sum_exp < 0 ? std::exp(log_sum_exp) : 1),
        slot(log_sum_exp < 0 ? 1 : std::exp(-log_sum_exp)) {}

  double entries, slot;
};

// OBCache's Table 2, and two further scores. With A the entry's attention weight, z its logit, v its value
// and o the query's output, the score is || w (a v - b o) ||^2, where w is the term's scale and a and b are
// its factors. Number is double or a vector of doubles.
template <Change change, class Number>
[[gnu::always_inline]] inline void table_2(const Number& A, const Number& z, const SlotShares& shares,
                                           ScaledDifference<Number>& term) {
  const Number one = Number{} + 1.0, zero = Number{};
  switch (change) {
    case Change::value:  // A^2 || v ||^2
      term = {A, one, zero};
      return;
    case Change::key:  // A^2 z^2 || v - o ||^2
      term = {A * z, one, one};
      return;
    case Change::joint:  // A^2 || v + z (v - o) ||^2: the table's sum of three terms is this square
      term = {A, one + z, z};
      return;
    case Change::exact:  // (A / (1 - A))^2 || v - o ||^2: not in the table; KeepKV's eq. 4 implies it
      term = {A / (one - A), one, one};
      return;
    case Change::slot: {
      // || (A / q)(v - o) + (r / q) o ||^2, r = e^-LSE, q = 1 - A + r: the table's eq. 1 itself
      const Number q = (one - A) * shares.entries + shares.slot;
      term = {one, A * shares.entries / q, (A * shares.entries - shares.slot) / q};
      return;
    }
  }
}

// The same for the dominant entry, in terms of the output o' of the other entries: o = A v + rest o', so
// v - o = rest (v - o'), and the score is || w (a v - b o') ||^2.
ScaledDifference<double> dominant_term(Change change, const QueryAttention& attention) {
  const double A = attention.lead, turned = attention.logit * attention.rest;
  switch (change) {
    case Change::value:
      return {A, 1, 0};
    case Change::key:
    case Change::exact:
      return {A, 1, 1};
    case Change::joint:
      return {A, 1 + turned, turned};
    case Change::slot:
      // With the dominant entry's logit set to 0, the others hold the share sigmoid(their log-sum-exp).
      return {1, A, sigmoid(attention.others) - attention.rest};
  }
  return {};
}

template <Change change>
void score_entries(const ChangeTerms& terms, std::span<double> scores) {
  const SlotShares shares(terms.attention.log_sum_exp);
  const auto term = [&](const auto& A, const auto& z, auto& result) __attribute__((always_inline)) {
    table_2<change>(A, z, shares, result);
  };
  const bool cancels = squared_differences(terms.weights, terms.attention.rest, terms.logits,
                                           terms.squared_norms, terms.output_norm, term, scores);
  if (!cancels) return;
  const auto difference = [&](size_t j) {
    ScaledDifference<double> by;
    table_2<change>(terms.weights[j] * terms.attention.rest, terms.logits[j], shares, by);
    return by;
  };
  measure_cancelled(terms, difference, scores);
}

// Scores may be infinite but not NaN.
void require_scores(MatrixView scores) {
  for (int64_t h = 0; h < scores.rows; ++h) {
    for (const double score : scores.row(h)) {
      if (std::isnan(score)) throw NonFinite("a score is no number: values or logits are too large");
    }
  }
}

}  // namespace

void score_entries(Change change, const ChangeTerms& terms, std::span<double> scores) {
  switch (change) {
    case Change::value:
      std::ranges::fill(scores, 0.0);  // the products with o are not used: b = 0
      return score_entries<Change::value>(terms, scores);
    case Change::key:
      return score_entries<Change::key>(terms, scores);
    case Change::joint:
      return score_entries<Change::joint>(terms, scores);
    case Change::exact:
      return score_entries<Change::exact>(terms, scores);
    case Change::slot:
      return score_entries<Change::slot>(terms, scores);
  }
}

double dominant_score(Change change, const QueryAttention& attention, VectorView value, VectorView others,
                      const ValueSpace& space) {
  if (change == Change::exact && attention.others == -kInfinity) return kInfinity;
  return squared_length(dominant_term(change, attention), value, others, space);
}

ScoredAttention scored_attention(Change change, MatrixView queries, const ScoredCache& cache, double scale) {
  const int64_t entries = cache.keys.rows;
  Matrix logits(queries.rows, entries);
  const std::vector<int64_t> visible(queries.rows, entries);
  std::vector<double> largest = attention_logits(queries, cache.keys, scale, visible, logits.view());
  Matrix voted;
  if (!cache.votes.empty()) {
    voted = voted_logits(logits, cache.votes);
    for (int64_t h = 0; h < voted.rows(); ++h) {
      largest[h] = *std::ranges::max_element(voted.row(h));
    }
  }
  ScoredAttention result{{}, Matrix(queries.rows, entries), Matrix(queries.rows, entries)};
  if (entries == 0) return {Matrix(queries.rows, cache.values.cols), result.weights, result.scores};
  const QueryBlock rows{logits, cache.votes.empty() ? logits.view() : voted.view(), visible, largest, 1};
  const EntryBlock seen{cache.values, cache.squared_norms, cache.spaces};
  ScoredQueries scored(change, rows, seen, result.weights.view());
  result.output = scored.attend_values();
  scored.add_scores(result.scores.view());
  scored.restore_weights();
  require_scores(result.scores);
  return result;
}

Matrix window_scores(const LayerView& layer, int64_t window, Change change, Space space) {
  Matrix scores = Matrix::for_overwrite(layer.shape.query_heads, layer.prompt_tokens());
  const std::vector<ValueSpace> spaces =
      value_spaces(space, layer.output_projection, layer.shape.query_heads);
  const std::vector<HeadBlock> blocks = head_blocks(layer.shape);
  struct Memory {
    Memory(const LayerView& layer, int64_t window)
        : logits(layer, window), weights(Matrix::for_overwrite(logits.most_rows(), layer.prompt_tokens())) {}
    WindowLogits logits;
    Matrix weights;
  };
  parallel_for(
      std::ssize(blocks), [&] { return Memory(layer, window); },
      [&](Memory& memory, int64_t index) {
        const HeadBlock& heads = blocks[index];
        set_zero(scores.view().middle_rows(heads.first, heads.count));
        const auto own = std::span(spaces).subspan(heads.first, heads.count);
        const MatrixView values = layer.values.slice(layer.shape.kv_head_of(heads.first));
        const Matrix norms = squared_norms(values, own);
        memory.logits.visit(heads, [&](const WindowLogitsBlock& block) {
          const QueryBlock queries{block.logits, block.logits, block.visible, block.largest, block.queries};
          const EntryBlock entries{values, norms, own};
          ScoredQueries scored(change, queries, entries,
                               memory.weights.view().middle_rows(0, block.logits.rows));
          if (change != Change::value) scored.attend_values();
          scored.add_scores(scores.view().middle_rows(heads.first, heads.count));
        });
      });
  require_scores(scores);
  return scores;
}

Matrix group_sum(MatrixView scores, int64_t group_size) {
  if (group_size < 1 || scores.rows % group_size != 0) {
    throw ShapeMismatch(std::to_string(scores.rows) + " query heads cannot be shared out in groups of " +
                        std::to_string(group_size));
  }
  Matrix sum = Matrix::for_overwrite(scores.rows / group_size, scores.cols);
  for_column_blocks(sum.view(), [&](int64_t g, int64_t first, std::span<double> block) {
    std::ranges::fill(block, 0.0);
    for (int64_t h = g * group_size; h < (g + 1) * group_size; ++h) {
      add(scores.row(h).subspan(first, block.size()), block);
    }
  });
  return sum;
}

}  // namespace kvbound::reference
