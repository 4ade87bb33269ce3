// Rounding error bounds of one query's scores: reference/eviction/obcache.hpp
// evaluated with bounds, operation by operation.
#pragma once

#include <kvbound/proofs/oracle/bounded.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

namespace kvbound::oracle {

/// reference::ValueSpace, evaluated with bounds.
class BoundedSpace {
 public:
  /// output_projection  [head_dim, model_dim], read for `projected` only
  BoundedSpace(Space space, MatrixView output_projection);

  /// x G
  Row gram_product(const Row& x) const;
  /// x G x^T
  Bounded squared_norm(const Row& x) const { return dot(x, gram_product(x)); }

 private:
  Rows gram_;  // G; empty: the identity
};

struct ScoredQuery {
  Row weights;  ///< A [entries]
  Row output;   ///< [head_dim], not projected
  Row scores;   ///< [entries]; meaningless for the exact removal of the only entry
};

/// The results of reference::scored_attention for one query, with bounds. Where rounding decides between two
/// forms, the larger bound of both is taken.
///
/// logits  [entries], the exact input of both sides
/// values  [entries, head_dim]
ScoredQuery scored_query(reference::Change change, VectorView logits, MatrixView values,
                         const BoundedSpace& space);

}  // namespace kvbound::oracle
