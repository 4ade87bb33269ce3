// Compares claimed numbers with the reference's, element by element, each within its bound.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

#include "claims.hpp"

namespace kvbound::sim {

/// A claimed element that disagrees, or comes closest to disagreeing, with the reference. For a kept set: a
/// position that was kept (claimed), and one that should have been kept in its place (expected).
struct Offender {
  std::vector<int64_t> index;  ///< one number per dimension of the tensor
  double claimed = 0;
  double expected = 0;  ///< the reference's number
  /// |claimed - expected|, infinity if one of them is NaN; for selections, the same of their scores.
  double error = 0;
  double bound = 0;  ///< largest error allowed, including the rounding of storage
  Dtype storage = Dtype::f64;
  std::string note;  ///< for selections: what is wrong with the choice; otherwise empty

  double share() const;  ///< error / bound; 0/0 is 0; infinity if the bound is NaN
  double ulps() const;   ///< the error in units of the expected number's last place in `storage`
};

/// A number that tells of a whole row, and how far rounding can take it from what it should be.
struct FunctionalValue {
  double value = 0;
  double band = 0;
};

/// How rows of a tensor compare as wholes, by one functional (reference/bounds/functionals.md).
struct FunctionalAgreement {
  std::string name;
  bool is_factor = true;  ///< its value should be 1, otherwise 0
  int64_t rows = 0;
  int64_t judged = 0;                  ///< rows whose gain has a band below 1, so that zeros would be found
  int64_t outside = 0;                 ///< rows beyond their band
  FunctionalValue all = {};            ///< of all rows together
  FunctionalValue worst = {};          ///< of the row that is farthest beyond its band, or comes closest
  double worst_share = 0;              ///< how far, in bands
  std::vector<int64_t> worst_at = {};  ///< its index
  /// Ascending: the first element, in C order of the tensor, of each row beyond its band, and of
  /// those that `judged` counts.
  std::vector<int64_t> outside_at = {}, judged_at = {};
};

/// A rounding that a dump may have left undeclared, and what its unit roundoff is of.
struct UndeclaredRounding {
  const char* name;
  double unit;
  bool weights, parts, products;
};
/// Those that are tried, in this order: 16-bit weights, 16-bit outputs of the cache's
/// parts, products of TF32.
std::span<const UndeclaredRounding> undeclared_roundings();

/// How far a factor of a row, or of several rows together, is from 1, beside what rounding does by chance
/// (reference/bounds/functionals.md, "By chance").
struct ChanceTest {
  static constexpr int64_t kAll = -1;  ///< in an index: every one

  std::string functional;
  std::vector<int64_t> at;  ///< of the row
  double value = 1;
  double bias = 0;                      ///< of what need not have mean zero
  double deviation = 0;                 ///< P(|value - 1| > bias + t deviation) <= 2 exp(-t^2 / 2)
  std::vector<double> undeclared = {};  ///< the deviation, with each of undeclared_roundings()

  double deviations() const;  ///< t
};

/// The tests of one tensor of one layer.
struct ChanceTests {
  int64_t count = 0;
  std::vector<ChanceTest> farthest = {};  ///< of each functional, of rows and of each kind of sum over rows
};

/// The one fault that explains rows that differ, in words.
struct ExplainedRows {
  std::string fault;
  int64_t rows = 0;  ///< so many were tried, the first ones
};

/// An element whose bound is this large has none.
inline constexpr double kUnboundedElement = 1e100;

/// How one tensor of one layer compares.
struct TensorAgreement {
  std::string tensor;  ///< its name without the layer
  int64_t elements = 0;
  int64_t judged = 0;   ///< elements on which the bound is informative: see compare
  int64_t outside = 0;  ///< elements beyond their bound
  /// Elements or choices of which rounding hides whether they are right. If there are any,
  /// the tensor is no evidence.
  int64_t undecided = 0;
  /// All expected numbers are 0 and all claimed numbers agree: right, but no evidence.
  bool all_zero = false;
  std::optional<Offender> worst;       ///< the first element of largest share; none if there are no elements
  std::optional<double> median_slack;  ///< of bound / error where there is an error; none if there is none
  /// Of merged keys: the largest condition number of queries for which rounding decides their rank, or for
  /// which there is no bound; none if there are no such queries.
  std::optional<double> condition_number = {};
  std::optional<int64_t> near_tie_swaps;  ///< for selections: choices that differ by rounding alone
  std::vector<FunctionalAgreement> functionals =
      {};                    ///< of tensors that are judged as wholes, too: the gain first
  ChanceTests chances = {};  ///< of outputs
  /// Where something is outside or undecided: elements, counted in C order of the claimed tensor. Of a KV
  /// head's kept set one element stands for all; an empty set has none.
  std::vector<int64_t> outside_at = {}, undecided_at = {};
  /// For tensors of numbers, [elements]: whether the bound distinguishes an element from zero, or an expected
  /// zero from the largest element.
  std::vector<bool> decidable = {};
  std::optional<ExplainedRows> diagnosis =
      {};  ///< of a tensor that differs and has functionals; none if no one fault explains it

  bool agrees() const;
  /// Whether the bounds distinguish some row, as a whole, from zeros.
  bool is_judged_as_a_whole() const;
};

/// The index, one number per dimension, of an element that is counted in C order.
std::vector<int64_t> index_of(int64_t element, const std::vector<int64_t>& shape);

/// Half the distance between neighbouring numbers of a real type at x, which bounds the error of
/// one rounding to that type.
double half_spacing(Dtype storage, double x);

/// The smallest magnitude that rounds to infinity in a real type.
double overflow_threshold(Dtype storage);

/// Checks that every claimed number is within its bound, plus half a spacing of its storage type:
///
///     |claimed - expected| <= bound + half_spacing(storage, claimed)
///
/// NaN is outside whatever the bound. An infinite claim is right if it is expected, or if a number within the
/// bound rounds to it. An element outside its bound counts as judged. An element inside counts as judged only
/// if its bound is below the largest expected magnitude. If no element's bound is below that element's own
/// expected magnitude, zeros everywhere would pass, so no element counts as judged.
///
/// expected, bounds  [elements of the claim]
/// throws            ShapeMismatch
TensorAgreement compare(const std::string& tensor, const RealClaim& claim, VectorView expected,
                        VectorView bounds);

/// The same where some expected numbers or bounds are uncertain. An uncertain element is undecided if it is
/// beyond its bound; any element without a bound is undecided. Undecided elements do not count as judged.
/// NaN is outside in any case.
///
/// bounds   [elements]; infinite or NaN: there is no bound
/// certain  [elements]: whether the expected number and its bound are certain
TensorAgreement compare_uncertain(const std::string& tensor, const RealClaim& claim, VectorView expected,
                                  VectorView bounds, const std::vector<bool>& certain);

/// The same for integers, which must be equal.
TensorAgreement compare(const std::string& tensor, const std::vector<int64_t>& claim,
                        const std::vector<int64_t>& expected);

}  // namespace kvbound::sim
