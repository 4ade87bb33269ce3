// How far bounds are from the errors that they bound.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/float16.hpp>

namespace kvbound::test {

/// A matrix or tensor rounded to values that single precision holds exactly, as it does all of BF16.
template <class Numbers>
Numbers stored(Numbers exact) {
  for (double& x : std::span(exact.data(), exact.numbers().size())) x = from_bfloat16(to_bfloat16(x));
  return exact;
}

struct Slack {
  void add(double difference, double bound, const std::string& what = "a number") {
    ASSERT_TRUE(std::abs(difference) <= bound) << what << ": " << difference << " is outside " << bound;
    if (difference != 0) ratios.push_back(bound / std::abs(difference));
  }
  double median() {
    std::ranges::sort(ratios);
    return ratios.at(ratios.size() / 2);
  }
  std::vector<double> ratios;  ///< of bound to error
};

}  // namespace kvbound::test
