#include "obcache.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/parallel.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/scratch.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>

#include "output_change.hpp"
#include "window_logits.hpp"

namespace kvbound::reference {
namespace {

// Some queries over one KV head's entries: of each head's the same number, one head after the other.
struct Queries {
  MatrixView logits;                 // [rows, entries]
  MatrixView voted;                  // likewise: logits + ln votes, by which they attend
  std::span<const int64_t> visible;  // [rows]
  std::span<const double> largest;   // [rows], of the voted ones
  int64_t per_head = 1;

  size_t head_of(int64_t row) const { return static_cast<size_t>(row / per_head); }
};

// What the queries look at; heads are those of the queries.
struct Entries {
  MatrixView values;                   // [entries, head_dim]
  MatrixView squared_norms;            // [heads, entries]
  std::span<const ValueSpace> spaces;  // [heads]
};

class ScoredQueries {
 public:
  // weights  [rows, entries], overwritten
  ScoredQueries(Change change, const Queries& queries, const Entries& entries, MutableMatrixView weights)
      : change_(change), queries_(queries), entries_(entries), weights_(weights) {
    const bool leaves_out_dominant =
        change == Change::joint || change == Change::exact || change == Change::slot;
    for (int64_t row = 0; row < weights.rows; ++row) {
      const auto index = static_cast<size_t>(row), seen = static_cast<size_t>(queries.visible[index]);
      const std::span<double> own = weights.row(row);
      attention_.push_back(query_attention(queries.voted.row(row).first(seen), queries.largest[index],
                                           leaves_out_dominant, own.first(seen)));
      QueryAttention& attention = attention_.back();
      if (attention.dominant >= 0) attention.logit = queries.logits(row, attention.dominant);
      std::ranges::fill(own.subspan(seen), 0.0);
    }
  }

  // The queries' outputs.
  const Matrix& attend_values() {
    means_ = Matrix(weights_.rows, entries_.values.cols);
    multiply(weights_, entries_.values, means_.view());
    outputs_ = means_;
    for (int64_t row = 0; row < outputs_.rows(); ++row) {
      const QueryAttention& attention = attention_[static_cast<size_t>(row)];
      if (attention.dominant < 0) continue;
      const VectorView value = entries_.values.row(attention.dominant);
      const std::span<double> output = outputs_.row(row);
      for (size_t c = 0; c < output.size(); ++c) {
        output[c] = attention.lead * value[c] + attention.rest * output[c];
      }
    }
    return outputs_;
  }

  // The true weights, from shares.
  void restore_weights() {
    for (int64_t row = 0; row < weights_.rows; ++row) {
      const QueryAttention& attention = attention_[static_cast<size_t>(row)];
      if (attention.dominant < 0) continue;
      for (double& weight : weights_.row(row)) weight *= attention.rest;
      weights_(row, attention.dominant) = attention.lead;
    }
  }

  // scores[head, j] += the change of each of the head's queries. After attend_values, unless `value` is scored.
  void add_scores(MutableMatrixView scores) {
    project_outputs();
    const int64_t size = query_product_block(entries_.values.rows);
    Matrix changes(weights_.rows, size);
    for (int64_t b = 0; b < token_blocks(entries_.values.rows, size); ++b) {
      const TokenBlock block(entries_.values, b, size);
      if (change_ != Change::value) multiply_transposed(duals_, block.rows, changes.view());
      for (int64_t row = 0; row < weights_.rows; ++row) add_row(row, block, changes.row(row), scores);
    }
  }

 private:
  // The outputs so that their inner products with values are those of the head's space, and their lengths.
  void project_outputs() {
    output_norms_.assign(static_cast<size_t>(weights_.rows), 0.0);
    if (change_ == Change::value) return;
    duals_ = Matrix(outputs_.rows(), outputs_.cols());
    for (int64_t first = 0; first < outputs_.rows(); first += queries_.per_head) {
      const ValueSpace& space = entries_.spaces[queries_.head_of(first)];
      const MatrixView outputs = outputs_.view().middle_rows(first, queries_.per_head);
      const Matrix duals = space.dual(outputs);
      const std::vector<double> norms = space.squared_norms(outputs);
      std::ranges::copy(duals.numbers(), duals_.row(first).begin());
      std::ranges::copy(norms, output_norms_.begin() + first);
    }
  }

  // One query's changes of one block of entries, added to its head's scores.
  void add_row(int64_t row, const TokenBlock& block, std::span<double> changes, MutableMatrixView scores) {
    const auto index = static_cast<size_t>(row);
    const QueryAttention& attention = attention_[index];
    const auto first = static_cast<size_t>(block.first);
    const int64_t seen = std::min(block.count, queries_.visible[index] - block.first);
    if (seen <= 0) return;
    const auto part = [&](auto numbers) { return numbers.subspan(first, static_cast<size_t>(seen)); };
    const auto head = static_cast<int64_t>(queries_.head_of(row));
    const ValueSpace& space = entries_.spaces[queries_.head_of(row)];
    const ChangeTerms terms{part(queries_.logits.row(row)),
                            part(VectorView(weights_.row(row))),
                            part(entries_.squared_norms.row(head)),
                            block.rows,
                            change_ == Change::value ? VectorView() : outputs_.row(row),
                            output_norms_[index],
                            attention,
                            space};
    changes = changes.first(static_cast<size_t>(seen));
    measure_changes(change_, terms, changes);
    if (const int64_t at = attention.dominant - block.first; 0 <= at && at < seen) {
      changes[static_cast<size_t>(at)] = dominant_change(
          change_, attention, entries_.values.row(attention.dominant), means_.row(row), space);
    }
    add(changes, part(scores.row(head)));
  }

  static void add(VectorView changes, std::span<double> scores) {
    run_at(
        instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          size_t j = 0;
          for (; j + L::kWidth <= changes.size(); j += L::kWidth) {
            typename L::Reals change, score;
            L::load(&changes[j], change);
            L::load(&scores[j], score);
            L::store(score + change, &scores[j]);
          }
          for (; j < changes.size(); ++j) scores[j] += changes[j];
        });
  }

  Change change_;
  const Queries& queries_;
  const Entries& entries_;
  MutableMatrixView weights_;  // of the rows with an entry set aside: shares of `rest`, and 0 for it
  std::vector<QueryAttention> attention_;  // [rows]
  Matrix means_;                           // sum_j weights_ij v_j [rows, head_dim]
  Matrix outputs_, duals_;                 // [rows, head_dim]
  std::vector<double> output_norms_;       // [rows]
};

// Infinity is a score, what is no number is none.
void require_scores(MatrixView scores) {
  for (int64_t h = 0; h < scores.rows; ++h) {
    for (const double score : scores.row(h)) {
      if (std::isnan(score)) throw NonFinite("a score is no number: values or logits are too large");
    }
  }
}

}  // namespace

ScoredAttention scored_attention(Change change, MatrixView queries, const ScoredCache& cache, double scale) {
  const int64_t entries = cache.keys.rows;
  Matrix logits(queries.rows, entries);
  const std::vector<int64_t> visible(static_cast<size_t>(queries.rows), entries);
  std::vector<double> largest = attention_logits(queries, cache.keys, scale, visible, logits.view());
  Matrix voted;
  if (!cache.votes.empty()) {
    voted = voted_logits(logits, cache.votes);
    for (int64_t h = 0; h < voted.rows(); ++h) {
      largest[static_cast<size_t>(h)] = *std::ranges::max_element(voted.row(h));
    }
  }
  ScoredAttention result{{}, Matrix(queries.rows, entries), Matrix(queries.rows, entries)};
  if (entries == 0) return {Matrix(queries.rows, cache.values.cols), result.weights, result.scores};
  const Queries rows{logits, cache.votes.empty() ? logits.view() : voted.view(), visible, largest, 1};
  const Entries seen{cache.values, cache.squared_norms, cache.spaces};
  ScoredQueries scored(change, rows, seen, result.weights.view());
  result.output = scored.attend_values();
  scored.add_scores(result.scores.view());
  scored.restore_weights();
  require_scores(result.scores);
  return result;
}

Matrix window_scores(const LayerView& layer, int64_t window, Change change, Space space) {
  Matrix scores(layer.shape.query_heads, layer.prompt_tokens());
  const std::vector<ValueSpace> spaces =
      value_spaces(space, layer.output_projection, layer.shape.query_heads);
  const std::vector<HeadBlock> blocks = head_blocks(layer.shape);
  struct Memory {
    Memory(const LayerView& layer, int64_t window)
        : logits(layer, window), weights(static_cast<size_t>(logits.most_rows() * layer.prompt_tokens())) {}
    WindowLogits logits;
    Scratch weights;
  };
  parallel_for(
      static_cast<int64_t>(blocks.size()), [&] { return Memory(layer, window); },
      [&](Memory& memory, int64_t index) {
        const HeadBlock& heads = blocks[static_cast<size_t>(index)];
        const auto own =
            std::span(spaces).subspan(static_cast<size_t>(heads.first), static_cast<size_t>(heads.count));
        const MatrixView values = layer.values.slice(layer.shape.kv_head_of(heads.first));
        const Matrix norms = squared_norms(values, own);
        memory.logits.visit(heads, [&](const WindowLogitsBlock& block) {
          const Queries queries{block.logits, block.logits, block.visible, block.largest, block.queries};
          const Entries entries{values, norms, own};
          ScoredQueries scored(change, queries, entries,
                               {memory.weights.data(), block.logits.rows, values.rows});
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
  Matrix sum(scores.rows / group_size, scores.cols);
  for (int64_t h = 0; h < scores.rows; ++h) {
    const VectorView row = scores.row(h);
    const std::span<double> group = sum.row(h / group_size);
    for (size_t j = 0; j < row.size(); ++j) group[j] += row[j];
  }
  return sum;
}

}  // namespace kvbound::reference
