// Claimed numbers against the reference's, element by element, each within a bound of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

#include "claims.hpp"

namespace kvbound::sim {

/// An element, what is claimed of it, and what may be claimed. Of a kept set: a position kept, and one that should have
/// been.
struct Offender {
  std::vector<int64_t> index;  ///< as many as the tensor has dimensions
  double claimed = 0;
  double expected = 0;  ///< the reference's
  double error =
      0;  ///< |claimed - expected|, infinity where one of them is NaN; of selections: of their scores
  double bound = 0;  ///< how large it may be, the rounding of storage included
  Dtype storage = Dtype::f64;
  std::string note;  ///< selections: what is wrong with the choice; else empty

  double share() const;  ///< error / bound; 0/0 is 0, and where there is no bound (NaN) it is infinity
  double ulps() const;   ///< the error in units of the expected number's last place in `storage`
};

/// How one tensor of one layer compares.
struct TensorAgreement {
  std::string tensor;  ///< its name without the layer
  int64_t elements = 0;
  int64_t judged = 0;   ///< elements of which the bound says something: see compare
  int64_t outside = 0;  ///< elements beyond their bound
  /// Choices that nothing tells right from wrong: with any of them, the tensor is no evidence.
  int64_t undecided = 0;
  /// The reference is zero everywhere and so is what is claimed: right, but no evidence.
  bool all_zero = false;
  std::optional<Offender> worst;       ///< of largest share, the first such; none for no elements
  std::optional<double> median_slack;  ///< of bound / error where there is an error; none where there is none
  std::optional<int64_t> near_tie_swaps;  ///< selections: entries that only rounding may have preferred

  bool agrees() const { return outside == 0; }
};

/// Half the distance of two neighbouring numbers of a real type about x: what one rounding to it costs at most.
double half_spacing(Dtype storage, double x);

/// The least magnitude that rounds to infinity in a real type.
double overflow_threshold(Dtype storage);

/// Holds every claimed number within its bound and half a spacing of its storage:
///
///     |claimed - expected| <= bound + half_spacing(storage, claimed)
///
/// NaN is outside whatever the bound; infinity is right where it is expected, or where a number within the bound rounds
/// to it. An element that is outside counts as judged whatever its bound; one that is inside, only if the bound is below the
/// largest of the expected numbers; and if no bound is below its own number, so that zeros everywhere would pass, none is.
///
/// expected, bounds  [elements of the claim]
/// throws            ShapeMismatch
TensorAgreement compare(const std::string& tensor, const RealClaim& claim, VectorView expected,
                        VectorView bounds);

/// The same where it is not certain of all elements what they should be, or how far they may be off. Such an element is
/// undecided if it is beyond its bound, or has none; it counts as not judged then. NaN is outside all the same.
///
/// bounds   [elements]; infinite, or NaN: there is none
/// certain  [elements]: whether it is that
TensorAgreement compare_uncertain(const std::string& tensor, const RealClaim& claim, VectorView expected,
                                  VectorView bounds, const std::vector<bool>& certain);

/// As the first for integers, which are right or wrong.
TensorAgreement compare(const std::string& tensor, const std::vector<int64_t>& claim,
                        const std::vector<int64_t>& expected);

}  // namespace kvbound::sim
