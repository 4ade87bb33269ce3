// Judges a tensor of attention outputs by its rows: each as a whole, how likely it is, and what
// explains those that differ.
#pragma once

#include <cstdint>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

#include "differing_rows.hpp"
#include "functionals.hpp"

namespace kvbound::sim {

class OutputRows {
 public:
  /// claim  [..., heads, head_dim]; must outlive the object
  /// scale  of the logits
  OutputRows(const RealClaim& claim, double scale) : functionals_(claim), differing_(claim, scale) {}

  /// The rows of one KV head's queries, from `first` on; of different rows on any threads.
  ///
  /// errors       of attention_errors, for this arithmetic
  /// of_kv_heads  DifferingRows::add
  void add(int64_t first, MatrixView queries, MatrixView keys, MatrixView values, VectorView votes,
           const reference::AttentionErrors& errors, const reference::Arithmetic& arithmetic,
           const OfKvHeads& of_kv_heads = {});

  /// Adds to the agreement of its elements what is known of its rows.
  ///
  /// expected  [elements of the claim]: the right outputs
  void complete(VectorView expected, TensorAgreement& agreement) const;

 private:
  OutputFunctionalsJudge functionals_;
  DifferingRows differing_;
};

}  // namespace kvbound::sim
