// Two dumps' results of one layer against each other, row by row.
//
// A row is what one KV head or query head has in a tensor, at a step if the tensor has steps. Its index
// has the tensor's leading dimensions as in dumps; of kept entries and merged ones [KV head], of rebuilt
// caches [rebuild, KV head].
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "agreement.hpp"
#include "rows.hpp"

namespace kvbound::sim {

/// An implementation's claims of one layer, judged.
struct JudgedClaims {
  LayerClaims claims;
  JudgedLayer judged;
  int64_t steps = 0;              ///< decode steps that the claims are of
  Dtype accumulate = Dtype::f64;  ///< the type in which products and sums were formed
};

/// A KV head whose caches differ between the implementations.
struct ApartHead {
  int64_t kv_head = 0;
  int64_t first_step =
      0;  ///< the first whose queries attended to different entries; 0 where there are no steps
};

struct LayerRows {
  std::vector<TensorRows> tensors;    ///< those that both have, in the order of dump_tensors()
  std::vector<ApartHead> apart = {};  ///< ascending
};

/// Compares what A and B claim of one layer by one policy and budget, over the steps that both have.
LayerRows compare_layer_rows(const LayerShape& shape, const JudgedClaims& a, const JudgedClaims& b);

}  // namespace kvbound::sim
