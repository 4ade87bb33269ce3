// Keeps the first rows of a tensor of outputs that differ, with what they were computed from,
// until all outputs are known.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

namespace kvbound::sim {

/// The outputs of one query over the entries of every KV head, [KV heads, head_dim].
using OfKvHeads = std::function<Matrix(VectorView query)>;

class DifferingRows {
 public:
  /// claim  [..., heads, head_dim]; must outlive the object
  DifferingRows(const RealClaim& claim, double scale) : claim_(claim), scale_(scale) {}

  /// A differing row: on any threads. Of all rows the first few are kept, and fewer of long caches, so that
  /// copies of keys and values fit into 512 MiB.
  ///
  /// query       of `queries` and `errors`
  /// arithmetic  that of the errors
  /// of_kv_heads for the row's token, where they are known; called before add() returns, if at all
  void add(int64_t row, int64_t query, MatrixView queries, MatrixView keys, MatrixView values,
           VectorView votes, const reference::AttentionErrors& errors,
           const reference::Arithmetic& arithmetic, const OfKvHeads& of_kv_heads = {});

  /// What explains all rows that were kept; nullopt if nothing does, or there are none.
  ///
  /// expected  [elements of the claim]: the right outputs
  std::optional<ExplainedRows> diagnosis(VectorView expected) const;

 private:
  struct Row {
    int64_t query = 0;
    Matrix queries, keys, values;
    std::vector<double> votes;
    reference::AttentionErrors errors;
    reference::Arithmetic arithmetic;
    Matrix of_kv_heads;
  };

  const RealClaim& claim_;
  double scale_;
  std::mutex mutex_;
  std::map<int64_t, Row> rows_;
  int64_t end_ = std::numeric_limits<int64_t>::max();  // the first row that there is no room for
};

}  // namespace kvbound::sim
