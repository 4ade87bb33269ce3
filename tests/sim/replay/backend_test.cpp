#include <gtest/gtest.h>

#include <kvbound/sim/options/runs.hpp>
#include <kvbound/sim/replay/backend.hpp>

namespace kvbound::sim {
namespace {

TEST(BackendArithmetic, OfTheReferenceIsDoublePrecisionInEveryOperation) {
  const auto [window, changes, norms, norms_l2, attention, nearest_keys, nearest_key] =
      arithmetic_of(kReference, Dtype::bf16, {4, 2, 8, 16}, 100, 20);
  for (const KernelArithmetic& one : {window, changes, norms, norms_l2, attention, nearest_keys, nearest_key})
    EXPECT_EQ(one.precision, Precision::fp64);
}

}  // namespace
}  // namespace kvbound::sim
