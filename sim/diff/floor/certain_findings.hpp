// What the judge finds whatever the rounding: a fault moves a number by more than the rounding of the faulty
// implementation can take back, beyond what is allowed to the right one.
//
// A faulty implementation's number is x' + r, |r| <= b', where x' is what exact arithmetic would make of the
// fault. The judge allows b around x. Of |x' - x| > b + b' no rounding leaves anything undetected.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <kvbound/reference/bounds/functionals.hpp>
#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::sim {

/// One query's attention output over a cache, right or faulty, and how far rounding can take it.
class BoundedOutput {
 public:
  /// query   [head_dim]
  /// values  must outlive the object
  BoundedOutput(VectorView query, MatrixView keys, MatrixView values, double scale,
                const reference::Arithmetic& arithmetic);
  BoundedOutput(const BoundedOutput&) = delete;  // parts refer to each other

  const std::vector<double>& output() const { return functionals_.output(); }  ///< [head_dim], exact
  VectorView errors() const { return errors_.output.row(0); }                  ///< [head_dim]
  /// How far rounding moves the inner product with this direction.
  double error(VectorView direction) const { return functionals_.error(direction); }
  const reference::OutputFunctionals& functionals() const { return functionals_; }
  /// The weight, of 1, of the tokens from `first` on.
  double weight_from(int64_t first) const;

 private:
  reference::AttentionErrors errors_;
  reference::OutputFunctionals functionals_;
};

/// A direction w in which a row x of numbers is judged as a whole.
struct JudgedDirection {
  std::vector<double> w;
  double bound = 0;  ///< of |<w, x^ - x>| of a right implementation, without storage
  double size = 0;   ///< <w, w>

  double band() const { return size > 0 ? bound / size : kInfinity; }
};

/// The judge of one row of a tensor of outputs: by its elements, its gain and its logit scale. The difference
/// from the reference's row, by which the judge finds more, depends on the rounding and is left out.
class CertainFindings {
 public:
  /// right    must outlive the object
  /// storage  the type that the claimed numbers are stored in
  CertainFindings(const BoundedOutput& right, Dtype storage);

  /// Whether rows of this faulty output are always found.
  bool always_find(const BoundedOutput& faulty) const;
  /// Whether right outputs times a factor are.
  bool always_find_factor(double factor) const;
  /// The smallest x such that both 1 - x and 1 + x are; nullopt if not even x = 1 is. See factor_floor.
  std::optional<double> factor_floor() const;
  /// How far rounding can take a right implementation's logit scale from 1; infinite if there is no bound.
  double logit_scale_band() const { return logit_scale_.band(); }

 private:
  JudgedDirection direction(std::vector<double> w) const;
  // outputs, errors  of the faulty implementation, without storage
  bool finds_element(VectorView outputs, VectorView errors) const;
  bool finds(const JudgedDirection& direction, VectorView outputs, VectorView errors, double bound) const;

  const BoundedOutput& right_;
  const Dtype storage_;
  const JudgedDirection gain_, logit_scale_;
};

/// Whether an element is always found: one that exact arithmetic would compute as
/// `faulty`, off by faulty_error.
///
/// storage  the type that the claimed number is stored in, whose rounding both sides may suffer
bool always_finds_element(double expected, double bound, double faulty, double faulty_error, Dtype storage);

/// Whether a row is always found along a direction: one that exact arithmetic would compute as `faulty`.
///
/// right         [columns]: x
/// faulty        [columns], off by faulty_errors, [columns], each, and along the direction by faulty_bound
/// storage       the type that the claimed numbers are stored in, whose rounding both sides may suffer
bool always_finds_along(const JudgedDirection& direction, VectorView right, VectorView faulty,
                        VectorView faulty_errors, double faulty_bound, Dtype storage);

/// The smallest x in (0, 1] such that factors 1 - x and 1 + x are both found; nullopt if not even x = 1 is.
std::optional<double> smallest_factor(const std::function<bool(double factor)>& finds);

/// Whether a factor of all numbers is always found, by one of them.
///
/// expected, bounds  [elements]: of a right implementation, without storage
bool always_find_factor(VectorView expected, VectorView bounds, double factor, Dtype storage);

/// The smallest x such that factors 1 - x and 1 + x of all numbers are always found, by the element that
/// shows it best; nullopt if not even x = 1 is. A factor that takes a number across a power of two doubles
/// what its storage may round, so that somewhat larger ones may be hidden there.
///
/// expected, bounds  [elements]: of a right implementation, without storage
std::optional<double> factor_floor(VectorView expected, VectorView bounds, Dtype storage);

/// The smallest size that is found, to within 9 %: from a first guess by factors of 2, then by three
/// bisections of the logarithm; nullopt if none up to `most` is. Every size that it returns was found;
/// smaller ones may be, too, where finding is not monotone.
std::optional<double> smallest_found(double guess, double least, double most,
                                     const std::function<bool(double)>& is_found);

}  // namespace kvbound::sim
