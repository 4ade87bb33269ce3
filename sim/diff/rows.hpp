// Two implementations' results of one tensor against each other, row by row, given what
// the reference says of each.
//
// A row is what a kernel computes together, so that one order of additions makes all of its numbers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>

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

/// A claimed tensor's numbers. Integers are widened: those that a double does not hold are no positions.
class RowNumbers {
 public:
  /// claim  must outlive the object
  explicit RowNumbers(const RealClaim& claim)
      : shape_(claim.shape), numbers_(claim.numbers), storage_(claim.storage) {}
  explicit RowNumbers(RealClaim&& claim)
      : shape_(std::move(claim.shape)),
        own_(std::move(claim.numbers)),
        numbers_(own_),
        storage_(claim.storage) {}
  RowNumbers(std::vector<int64_t> shape, const std::vector<int64_t>& integers)
      : shape_(std::move(shape)), own_(integers.begin(), integers.end()), numbers_(own_) {}
  RowNumbers(RowNumbers&&) = default;
  RowNumbers& operator=(RowNumbers&&) = default;

  const std::vector<int64_t>& shape() const { return shape_; }
  VectorView numbers() const { return numbers_; }
  bool integral() const { return storage_ == Dtype::i64; }
  Dtype storage() const { return storage_; }

 private:
  std::vector<int64_t> shape_;
  std::vector<double> own_ = {};
  VectorView numbers_;
  Dtype storage_ = Dtype::i64;
};

/// Where a tensor's rows begin and end.
struct RowLayout {
  std::vector<int64_t> extents;      ///< the rows' index space; empty for tensors of one row
  std::vector<int64_t> begins = {};  ///< [rows + 1]: their first elements

  /// Rows of equal length.
  static RowLayout uniform(std::vector<int64_t> extents, int64_t elements);

  int64_t rows() const { return std::ssize(begins) - 1; }
  int64_t row_of(int64_t element) const;
};

/// One implementation's numbers of a tensor, in rows, and what the reference says of each row.
struct JudgedRows {
  RowNumbers numbers;
  RowLayout layout;
  std::vector<bool> wrong, undecided;  ///< [rows]

  VectorView row(int64_t row) const {
    return numbers.numbers().subspan(layout.begins[row], layout.begins[row + 1] - layout.begins[row]);
  }
};

/// The rows of a tensor as it was judged.
///
/// needs_evidence  whether rows are undecided for which zeros would not be found
JudgedRows judged_rows(RowNumbers numbers, RowLayout layout, const TensorAgreement& found,
                       bool needs_evidence = true);

/// A row that is not identical.
struct DifferingRow {
  int64_t row = 0, row_b = 0;  ///< of A and of B, in C order
  RowVerdict verdict = RowVerdict::reordered;
  /// Of reordered real numbers: the largest distance of two elements, in units in the last place of the
  /// larger one (of the type Distances::unit), and in those of the row's largest number, beside which
  /// numbers near zero do not count.
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

/// How rows of one tensor compare.
struct TensorRows {
  std::string tensor;
  std::vector<int64_t> extents, extents_b = {};          ///< of A's and B's rows
  std::array<int64_t, kRowVerdicts.size()> counts = {};  ///< by RowVerdict
  std::vector<DifferingRow> differing = {};              ///< in the order of the pairs
  std::optional<Distances> distances = {};               ///< none if no rows of real numbers are reordered

  int64_t count(RowVerdict verdict) const { return counts[static_cast<size_t>(verdict)]; }
  int64_t rows() const;
};

/// The rows of two dumps that are compared with each other.
struct RowPairs {
  std::vector<std::pair<int64_t, int64_t>> rows;        ///< one of A and one of B
  std::function<bool(int64_t)> is_of_other_cache = {};  ///< whether a row of A is; empty: none is
  bool to_the_shorter =
      false;  ///< whether the longer of two rows ends later, and both are compared up to there
};

/// accumulate  the coarser of the types in which the numbers were added
TensorRows compare_rows(const std::string& tensor, const JudgedRows& a, const JudgedRows& b,
                        const RowPairs& pairs, Dtype accumulate);

/// The coarser of two real types.
Dtype coarser(Dtype a, Dtype b);

}  // namespace kvbound::sim
