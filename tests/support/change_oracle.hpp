// Changes of outputs by removing entries, or by a Taylor term of that: the definitions in 50 digits.
//
// Unlike the oracle's Bounded, which carries the error bound of one particular evaluation, a Measured carries
// the sum of the absolute terms of its change. Scores must be within 1e-9 of their value plus 1e-13 of these
// terms, which exceeds the rounding errors at the sizes of the tests: with d = head_dim and n entries, a
// logit is off by gamma_{d+1} sum |q k scale| (1e-11 for logits of 10^4); a weight's relative error is twice
// that plus (n + 6) u, and it enters squared: 5e-11; differences are formed where no less than a 2^-13th of
// their terms is left, which costs 2^13 (d + n) u: 1e-10 for d + n < 100.
#pragma once

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/output_change.hpp>

namespace kvbound::oracle {

/// scale * query . keys[j,:]
Reals exact_logits(VectorView query, MatrixView keys, double scale);

/// x W, or x without a W.
///
/// projection  [head_dim, model_dim]; no rows: none
std::vector<Measured> projected(const std::vector<Measured>& x, MatrixView projection);

/// The change of one query's output by one entry, by definition: `exact` deletes it, `slot` zeroes its key
/// and value, `value` zeroes its value, `key` and `joint` follow their formulas. The query sees all entries.
///
/// values      [entries, head_dim]; `exact`: at least two entries
/// projection  [head_dim, model_dim]; no rows: the change is not projected
/// votes       [entries], in the attention but not in z; empty: all 1; not for `slot`
Measured change(reference::Change change, const Reals& logits, MatrixView values, MatrixView projection,
                int64_t entry, VectorView votes = {});

/// o' - o by deleting the entries, from both outputs, with the sums of absolute terms.
///
/// removed  ascending indices; not all
std::vector<Measured> removal(const Reals& logits, MatrixView values, Indices removed);

/// |actual - value| <= 1e-9 |value| + 1e-13 terms, plus an allowance for underflow; NaN fails.
testing::AssertionResult near(double actual, const Measured& expected);

}  // namespace kvbound::oracle
