// Two implementations' results of one layer against each other, row by row, given what the reference says of each.
//
// A row is what one KV head or query head has in a tensor, at a step if the tensor has steps: the numbers that a kernel computes
// together, so that one order of additions makes all of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "agreement.hpp"

namespace kvbound::sim {

/// The first that holds.
enum class RowVerdict {
  both_wrong,   ///< outside the bounds in both
  wrong_a,      ///< in A alone
  wrong_b,      ///< in B alone
  identical,    ///< the same numbers, to the last bit
  undecided,    ///< in one of them nothing tells right from wrong
  other_cache,  ///< right in both, but of caches that differ by an earlier choice: distances say nothing
  reordered,    ///< different bits, both explained by rounding; of choices: a near tie
};
inline constexpr std::array kRowVerdicts{
    RowVerdict::identical, RowVerdict::reordered, RowVerdict::other_cache, RowVerdict::undecided,
    RowVerdict::wrong_a,   RowVerdict::wrong_b,   RowVerdict::both_wrong};

/// "identical", "reordered", "other cache", "undecided", "wrong: A", "wrong: B", "both wrong"
const char* word(RowVerdict verdict);

/// A dump's claims of one layer, judged.
struct JudgedClaims {
  LayerClaims claims;
  JudgedLayer judged;
  int64_t steps = 0;              ///< decode steps that the claims are of
  Dtype accumulate = Dtype::f64;  ///< the type in which products and sums were formed
};

/// A row that is not identical.
struct DifferingRow {
  int64_t row = 0;  ///< in C order
  RowVerdict verdict = RowVerdict::reordered;
  /// Of reordered real numbers: the largest distance of two elements, in units in the last place of the larger one (of the type
  /// Distances::unit), and in those of the row's largest number, beside which numbers near zero do not count.
  std::optional<double> ulps = {}, row_ulps = {};
};

/// Two elements of reordered rows that are farthest apart.
struct FarthestElement {
  std::vector<int64_t> index;  ///< in A's tensor
  double a = 0;
  double b = 0;
  double ulps = 0;
};

/// The largest distances in the reordered rows of a tensor.
struct Distances {
  Dtype unit = Dtype::f64;  ///< the coarsest of the two tensors' types and of the two accumulators'
  FarthestElement farthest;
  double row_ulps = 0;  ///< DifferingRow::row_ulps
};

/// How the rows that both dumps have of one tensor compare.
struct TensorRows {
  std::string tensor;  ///< its name without the layer
  /// The rows' index space: the tensor's leading dimensions as in dumps; of kept entries and merged ones [KV head], of rebuilt
  /// caches [rebuild, KV head]; empty for tensors of one row.
  std::vector<int64_t> extents;
  std::array<int64_t, kRowVerdicts.size()> counts = {};  ///< by RowVerdict
  std::vector<DifferingRow> differing;                   ///< ascending
  std::optional<Distances> distances;                    ///< none if no rows of real numbers are reordered

  int64_t count(RowVerdict verdict) const { return counts[static_cast<size_t>(verdict)]; }
  int64_t rows() const;
};

/// A KV head whose caches differ between the implementations.
struct ApartHead {
  int64_t kv_head = 0;
  int64_t first_step = 0;  ///< the first whose queries attended to different entries
};

struct LayerRows {
  std::vector<TensorRows> tensors;  ///< those that both have, in the order of dump_tensors()
  std::vector<ApartHead> apart;     ///< ascending
};

/// Compares what A and B claim of one layer by one policy and budget, over the steps that both have.
LayerRows compare_rows(const LayerShape& shape, const JudgedClaims& a, const JudgedClaims& b);

}  // namespace kvbound::sim
