// The merged numbers that a teacher-forced replay takes from the tested implementation's record.
//
// An error bound of a merged entry covers the errors of its members, which are merged entries themselves:
// bounds compound from merge to merge. Where the record holds the tested implementation's own numbers, the
// replay therefore continues with these once they are judged. They have no error: all that follows is judged
// on the cache that the tested implementation has, by the bound of a single merge.
#pragma once

#include <cstdint>
#include <optional>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

#include <kvbound/sim/diff/claims/claims.hpp>

namespace kvbound::sim {

/// Claimed numbers of merged entries, one row per entry; null where none are claimed.
struct MergedClaims {
  const RealClaim* votes = nullptr;   ///< [rows]
  const RealClaim* keys = nullptr;    ///< [rows, head_dim]
  const RealClaim* values = nullptr;  ///< [rows, head_dim]
};

MergedClaims prompt_claims(const LayerClaims& claims);
MergedClaims rebuilt_claims(const LayerClaims& claims);
MergedClaims step_claims(const LayerClaims& claims);

/// Whether these recorded numbers are, to the last bit, those of a cache whose entries are of type `stored`.
///
/// recorded  the type of the record. It must hold every number of `stored`: F64 holds all, F32 also F16 and
///           BF16, and these two only themselves
/// numbers   all must be finite, and numbers of `stored`: others were recorded before
///           the cache's own rounding
bool are_exact(VectorView numbers, Dtype recorded, Dtype stored);

/// The same of votes, which are integers whatever the type of the cache: between 1 and the largest number
/// below which the type of the record holds every integer.
bool are_exact_votes(double votes, Dtype recorded);

/// The claimed numbers of one entry that a replay continues with; nullopt: its own.
struct ExactEntry {
  std::optional<double> votes;
  std::optional<VectorView> key, value;  ///< [head_dim]

  bool is_any() const { return votes || key || value; }
};

/// The row of a claimed tensor [rows, head_dim]; nullopt without a claim.
std::optional<VectorView> claimed_row(const RealClaim* claim, int64_t row);

/// Claimed rows of which the exact ones are forced.
class ExactRows {
 public:
  /// Forces nothing.
  ExactRows() = default;
  /// claims  must outlive the object
  /// stored  type of the tested implementation's merged entries
  ExactRows(const MergedClaims& claims, Dtype stored) : claims_(claims), stored_(stored) {}

  ExactEntry entry(int64_t row) const;
  /// The claimed key and value of an entry, exact or not; nullopt: not claimed.
  std::optional<VectorView> key(int64_t row) const { return claimed_row(claims_.keys, row); }
  std::optional<VectorView> value(int64_t row) const { return claimed_row(claims_.values, row); }

 private:
  MergedClaims claims_;
  Dtype stored_ = Dtype::f64;
};

}  // namespace kvbound::sim
