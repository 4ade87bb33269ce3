// Comparisons with the oracle: the definitions in 50 digits, with bounds on evaluating
// them in double precision.
#pragma once

#include <gtest/gtest.h>

#include <kvbound/proofs/oracle/definitions.hpp>

namespace kvbound::oracle {

/// |actual - expected.value| <= expected.bound; NaN fails.
testing::AssertionResult within(double actual, const Bounded& expected);

/// The same element by element. Fails, because they would prove nothing, for: different sizes, no elements, a
/// reference of zeros only, bounds that are nowhere smaller than the value.
testing::AssertionResult all_within(VectorView actual, const Row& expected);
testing::AssertionResult all_within(MatrixView actual, const Rows& expected);

}  // namespace kvbound::oracle
