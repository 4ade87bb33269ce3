#include <limits>

#include <gtest/gtest.h>

#include <kvbound/sim/diff/judge/exact_rows.hpp>

namespace kvbound::sim::exact_rows_test {
namespace {

using enum Dtype;

TEST(ExactRows, AreExactInATypeThatHoldsAllNumbersOfTheCaches) {
  const std::vector<double> numbers{1, -0.5, 0};
  for (const auto& [recorded, stored] : {std::pair(f64, f64),
                                         {f64, f32},
                                         {f64, f16},
                                         {f64, bf16},
                                         {f32, f32},
                                         {f32, f16},
                                         {f32, bf16},
                                         {f16, f16},
                                         {bf16, bf16}}) {
    EXPECT_TRUE(are_exact(numbers, recorded, stored)) << name(recorded) << " " << name(stored);
  }
  for (const auto& [recorded, stored] :
       {std::pair(f32, f64), {f16, f64}, {bf16, f64}, {f16, f32}, {bf16, f32}, {f16, bf16}, {bf16, f16}}) {
    EXPECT_FALSE(are_exact(numbers, recorded, stored)) << name(recorded) << " " << name(stored);
  }
}

TEST(ExactRows, AreNotExactBeforeTheCachesOwnRounding) {
  EXPECT_FALSE(are_exact(std::vector{1, 1 + 0x1p-8}, f64, bf16));
  EXPECT_TRUE(are_exact(std::vector{1, 1 + 0x1p-7}, f64, bf16));
  EXPECT_FALSE(are_exact(std::vector{1, 1e30}, f64, f16)) << "beyond its range";
}

TEST(ExactRows, AreNotExactUnlessAllAreFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(are_exact(std::vector{1, bad}, f64, f64));
    EXPECT_FALSE(are_exact_votes(bad, f64));
  }
}

TEST(ExactRows, VotesAreIntegersThatTheTypeTellsFromTheirNeighbours) {
  for (const double votes : {1.0, 2.0, 255.0}) EXPECT_TRUE(are_exact_votes(votes, bf16)) << votes;
  for (const double votes : {0.0, -1.0, 1.5, 256.0, 300.0})
    EXPECT_FALSE(are_exact_votes(votes, bf16)) << votes;
  EXPECT_TRUE(are_exact_votes(256, f16));
  EXPECT_TRUE(are_exact_votes(2047, f16));
  EXPECT_FALSE(are_exact_votes(2048, f16));
}

TEST(ExactRows, GiveTheRowsThatAreExactAndNoneOfWhatIsNotClaimed) {
  const RealClaim votes{{2}, {3, 0.5}}, keys{{2, 2}, {1, 2, 3, 4}}, values{{2, 2}, {5, 6, 7.001, 8}};
  const ExactRows forced({&votes, &keys, &values}, bf16);
  const ExactEntry first = forced.entry(0), second = forced.entry(1);
  EXPECT_EQ(first.votes.value(), 3);
  EXPECT_EQ(first.key.value()[1], 2);
  EXPECT_EQ(first.value.value()[1], 6);
  EXPECT_FALSE(second.votes);
  EXPECT_EQ(second.key.value()[0], 3);
  EXPECT_FALSE(second.value);
  EXPECT_TRUE(second.is_any());
  EXPECT_FALSE(ExactRows().entry(7).is_any());
  EXPECT_FALSE(ExactRows({nullptr, nullptr, &values}, bf16).entry(1).is_any());
}

}  // namespace
}  // namespace kvbound::sim::exact_rows_test
