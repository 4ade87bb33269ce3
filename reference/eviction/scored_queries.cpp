#include "scored_queries.hpp"

#include <algorithm>

#include <kvbound/reference/numerics/elementwise.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>

#include "obcache_terms.hpp"

namespace kvbound::reference {

ScoredQueries::ScoredQueries(Change change, const QueryBlock& queries, const EntryBlock& entries,
                             MutableMatrixView weights)
    : change_(change), queries_(queries), entries_(entries), weights_(weights) {
  for (int64_t row = 0; row < weights.rows; ++row) {
    const auto index = static_cast<size_t>(row), seen = static_cast<size_t>(queries.visible[index]);
    const std::span<double> own = weights.row(row);
    attention_.push_back(query_attention(queries.voted.row(row).first(seen), queries.largest[index],
                                         leaves_out_dominant(change), own.first(seen)));
    QueryAttention& attention = attention_.back();
    if (attention.dominant >= 0) attention.logit = queries.logits(row, attention.dominant);
    std::ranges::fill(own.subspan(seen), 0.0);
  }
}

const Matrix& ScoredQueries::attend_values() {
  means_ = Matrix(weights_.rows, entries_.values.cols);
  multiply(weights_, entries_.values, means_.view());
  outputs_ = means_;
  for (int64_t row = 0; row < outputs_.rows(); ++row) {
    const QueryAttention& attention = attention_[row];
    if (attention.dominant < 0) continue;
    const VectorView value = entries_.values.row(attention.dominant);
    const std::span<double> output = outputs_.row(row);
    for (size_t c = 0; c < output.size(); ++c) {
      output[c] = attention.lead * value[c] + attention.rest * output[c];
    }
  }
  return outputs_;
}

void ScoredQueries::restore_weights() {
  for (int64_t row = 0; row < weights_.rows; ++row) {
    const QueryAttention& attention = attention_[row];
    if (attention.dominant < 0) continue;
    for (double& weight : weights_.row(row)) weight *= attention.rest;
    weights_(row, attention.dominant) = attention.lead;
  }
}

void ScoredQueries::add_scores(MutableMatrixView scores) {
  project_outputs();
  const int64_t size = query_product_block(entries_.values.rows);
  Matrix changes(weights_.rows, size);
  for (int64_t b = 0; b < token_blocks(entries_.values.rows, size); ++b) {
    const TokenBlock block(entries_.values, b, size);
    if (change_ != Change::value) multiply_transposed(gram_products_, block.rows, changes.view());
    for (int64_t row = 0; row < weights_.rows; ++row)
      add_row(row, block.first, block.rows, block.count, changes.row(row), scores);
  }
}

// Multiplies the outputs by each head's Gram matrix, so that plain inner products with values are those of
// the head's space, and computes their squared lengths.
void ScoredQueries::project_outputs() {
  output_norms_.assign(weights_.rows, 0.0);
  if (change_ == Change::value) return;
  gram_products_ = Matrix(outputs_.rows(), outputs_.cols());
  for (int64_t first = 0; first < outputs_.rows(); first += queries_.per_head) {
    const ValueSpace& space = entries_.spaces[queries_.head_of(first)];
    const MatrixView outputs = outputs_.view().middle_rows(first, queries_.per_head);
    const Matrix gram_products = space.gram_product(outputs);
    const std::vector<double> norms = space.squared_norms(outputs);
    std::ranges::copy(gram_products.numbers(), gram_products_.row(first).begin());
    std::ranges::copy(norms, output_norms_.begin() + first);
  }
}

// Adds one query's scores of one block of entries to the scores of its head.
void ScoredQueries::add_row(int64_t row, int64_t first_entry, MatrixView values, int64_t count,
                            std::span<double> changes, MutableMatrixView scores) {
  const int64_t index = row;
  const QueryAttention& attention = attention_[index];
  const auto first = static_cast<size_t>(first_entry);
  const int64_t seen = std::min(count, queries_.visible[index] - first_entry);
  if (seen <= 0) return;
  const auto part = [&](auto numbers) { return numbers.subspan(first, seen); };
  const auto head = static_cast<int64_t>(queries_.head_of(row));
  const ValueSpace& space = entries_.spaces[queries_.head_of(row)];
  const ChangeTerms terms{part(queries_.logits.row(row)),
                          part(VectorView(weights_.row(row))),
                          part(entries_.squared_norms.row(head)),
                          values,
                          change_ == Change::value ? VectorView() : outputs_.row(row),
                          output_norms_[index],
                          attention,
                          space};
  changes = changes.first(seen);
  score_entries(change_, terms, changes);
  if (const int64_t at = attention.dominant - first_entry; 0 <= at && at < seen) {
    changes[at] =
        dominant_score(change_, attention, entries_.values.row(attention.dominant), means_.row(row), space);
  }
  add(changes, part(scores.row(head)));
}

}  // namespace kvbound::reference
