// Attention of a few queries over one KV head's cache: logits, weights, outputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// How well each query matches each key.
///
///     logits[i, j] = scale * queries[i,:] . keys[j,:]
///
/// queries  [queries, head_dim]
/// keys     [tokens, head_dim]     one KV head
/// scale    not 0: BLAS would skip the product, and a NaN or infinite input would not show
/// returns  [queries, tokens], natural-log units (softmax of a row gives weights); equal keys get
///          equal logits to the last bit
/// throws   ShapeMismatch if the inner dimensions differ
Matrix attention_logits(MatrixView queries, MatrixView keys, double scale);

/// The same logits written into the caller's memory; returns the largest visible logit of each query.
///
///     largest[i] = max_{j < visible[i]} logits[i, j]
///
/// visible  [queries], 0..tokens: query i sees the first visible[i] tokens
/// logits   [queries, tokens], filled in for all tokens
/// returns  largest [queries]; -infinity for no tokens
/// throws   ShapeMismatch, NonFinite if a visible logit is NaN or infinite
std::vector<double> attention_logits(MatrixView queries, MatrixView keys, double scale,
                                     std::span<const int64_t> visible, MutableMatrixView logits);

/// The logits of a cache with merged entries: an entry with votes p is weighted like p equal entries.
///
///     voted[i, j] = logits[i, j] + ln votes[j]
///
/// votes    [entries], p > 0
/// returns  [queries, entries], natural log
/// throws   ShapeMismatch
/// source   KeepKV (arXiv:2504.09936), section 3
Matrix voted_logits(MatrixView logits, VectorView votes);

/// The logarithm of the softmax's denominator, safe for any finite logits.
///
///     log_sum_exp(z) = ln sum_j exp(z_j)
///
/// logits   [tokens], natural log; -infinity where a token is absent
/// returns  natural log; -infinity for no tokens
double log_sum_exp(VectorView logits);

/// The softmax of logits whose largest is known.
///
///     weights[j] = exp(z_j - largest) / sum_j exp(z_j - largest)
///
/// logits   [tokens], natural log; -infinity where a token is absent
/// weights  [tokens], written; may be the same memory as the logits
/// returns  the sum by which the exponentials were divided
double softmax(VectorView logits, double largest, std::span<double> weights);

/// Softmax of each row over the tokens that its query may see, in place.
///
///     logits[i, j] <- exp(z_ij) / sum_{j' <= first_position + i} exp(z_ij')  for j <= first_position + i
///     logits[i, j] <- 0                                                      for future tokens
///
/// logits          [queries, tokens], natural log; row i belongs to the query at position first_position + i
/// first_position  >= 0
/// throws          NonFinite if a visible logit is NaN or infinite
void causal_softmax(MutableMatrixView logits, int64_t first_position);

/// The attention weights of successive queries.
///
///     weights = causal softmax of scale * queries * transpose(keys)
///
/// queries         [queries, head_dim]; row i sits at position first_position + i
/// keys            [tokens, head_dim]
/// returns         [queries, tokens], each row >= 0 with sum 1 over positions 0..first_position + i
/// throws          ShapeMismatch, NonFinite
Matrix attention_weights(MatrixView queries, MatrixView keys, double scale, int64_t first_position);

struct AttentionOutput {
  Matrix output;                    ///< [queries, head_dim]
  std::vector<double> log_sum_exp;  ///< [queries], natural log, votes included
  Matrix weights;                   ///< [queries, entries], each row >= 0 with sum 1
};

/// Attention over a compressed cache, without a mask: every query sees every entry.
///
///     output[i,:] = sum_j p_j exp(z_ij) values[j,:] / sum_j p_j exp(z_ij),   z = attention_logits
///
/// queries  [queries, head_dim]
/// keys     [entries, head_dim]
/// values   [entries, head_dim]
/// votes    [entries], p > 0: the number of original entries that each entry stands for; empty: 1 for all
/// returns  a convex combination of the values, per query; zeros and -infinity for no entries
/// throws   ShapeMismatch; NonFinite if a logit is NaN or infinite
/// source   KeepKV (arXiv:2504.09936), section 3: softmax of z + ln p
AttentionOutput attention(MatrixView queries, MatrixView keys, MatrixView values, double scale,
                          VectorView votes = {});

}  // namespace kvbound::reference
