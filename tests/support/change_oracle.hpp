// What removing entries, or a Taylor term of it, does to an output: the definitions in 50 digits.
//
// Other than the oracle's Bounded, which carries the error bound of one given evaluation along, a Measured comes with the
// sum of the absolute terms that the change is made of. The scores of entries are held to 1e-9 of their value and
// 1e-13 of those terms: what their evaluation may cost at the sizes of the tests is less. With d = head_dim and n entries,
// a logit is off by gamma_{d+1} sum |q k scale| (1e-11 for logits of 10^4), a weight's relative error is twice that and
// (n + 6) u more, it enters squared: 5e-11; differences are formed where less than a 2^-13th of their terms is left, which
// costs 2^13 (d + n) u: 1e-10 for d + n < 100.
#pragma once

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/bounded.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

namespace kvbound::oracle {

using Reals = std::vector<Real>;

/// scale * query . keys[j,:]
Reals exact_logits(VectorView query, MatrixView keys, double scale);
/// exp(z_j) / sum exp(z)
Reals exact_weights(const Reals& logits);

/// A change, and the square of what its terms add up to without their signs.
struct Measured {
  Real value = 0;
  Real terms = 0;
  Measured& operator+=(const Measured& other);
};

/// What one entry is worth to one query that sees them all, by definition: `exact` by deleting it, `slot` by zeroing its
/// key and value, `value` by zeroing its value, `key` and `joint` by their formulas.
///
/// values      [entries, head_dim]; `exact`: at least two entries
/// projection  [head_dim, model_dim]; no rows: the change is measured as it is
Measured change(reference::Change change, const Reals& logits, MatrixView values, MatrixView projection,
                int64_t entry);

/// o' - o when the entries are deleted, by evaluating both; and the sums of absolute terms.
///
/// removed  ascending indices; not all
std::vector<Measured> removal(const Reals& logits, MatrixView values, Indices removed);

/// |actual - value| <= 1e-9 |value| + 1e-13 terms, and what underflows; NaN fails.
testing::AssertionResult near(double actual, const Measured& expected);

}  // namespace kvbound::oracle
