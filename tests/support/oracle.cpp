#include "oracle.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>

namespace kvbound::oracle {

testing::AssertionResult within(double actual, const Bounded& expected) {
  // The oracle's numbers are finite: infinity and NaN fail whatever the bound.
  if (std::isfinite(actual) && abs(Real(actual) - expected.value) <= expected.bound) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << std::setprecision(17) << actual << " is not within " << expected.bound
                                     << " of " << std::setprecision(25) << expected.value;
}

testing::AssertionResult all_within(VectorView actual, const Row& expected) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " numbers for " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (auto result = within(actual[i], expected[i]); !result) return result << " at " << i;
  }
  if (std::ranges::none_of(expected, [](const Bounded& e) { return e.bound < abs(e.value); })) {
    return testing::AssertionFailure() << "a comparison with nothing but zeros proves nothing";
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult all_within(MatrixView actual, const Rows& expected) {
  if (actual.rows != std::ssize(expected) || expected.empty()) {
    return testing::AssertionFailure() << actual.rows << " rows for " << expected.size();
  }
  for (int64_t i = 0; i < actual.rows; ++i) {
    if (auto result = all_within(VectorView(actual.row(i)), expected[i]); !result) {
      return result << " in row " << i;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace kvbound::oracle
