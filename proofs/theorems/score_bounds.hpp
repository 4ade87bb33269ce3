// What one query's scores may have got wrong in double precision: reference/eviction/obcache.hpp evaluated with bounds, operation
// by operation.
#pragma once

#include <kvbound/proofs/oracle/bounded.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

namespace kvbound::oracle {

/// reference::ValueSpace
class BoundedSpace {
 public:
  /// output_projection  [head_dim, model_dim], needed for `projected` alone
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
  Row scores;   ///< [entries]; of the only entry's exact removal nothing
};

/// What reference::scored_attention makes of one query. Where rounding may decide which of two forms is evaluated, the
/// wider bound of both counts.
///
/// logits  [entries], as both sides are given them
/// values  [entries, head_dim]
ScoredQuery scored_query(reference::Change change, VectorView logits, MatrixView values,
                         const BoundedSpace& space);

}  // namespace kvbound::oracle
