#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <kvbound/reference/core/draw.hpp>

#include "support/random_layer.hpp"

namespace kvbound::draw_test {
namespace {

using test::integer;
using Positions = std::vector<int64_t>;

// Bits that tests/independent/draws.py gives; SplitMix64 seeded with 0 begins with the first.
static_assert(draw(0) == 0xe220a8397b1dcdaf);
static_assert(draw(0, 0, 0, 0) == 0x2130748aaac80268);
static_assert(draw(7, 2, 1, 40) == 0x0becfca3e042fe8e);
static_assert(draw(std::numeric_limits<int64_t>::max(), 0, 3, int64_t{1} << 31) == 0xc73218dc080d957a);
static_assert(DrawSeed{7, 2, 1}.draw_of(40) == draw(7, 2, 1, 40));

TEST(SmallestDraws, AreTheFirstOfTheirOrderAndTiesGoToTheSmallerIndex) {
  const std::vector<uint64_t> draws{5, ~uint64_t{0}, 3, 5, 0, 3, 5};
  const Positions order{4, 2, 5, 0, 3, 6, 1};
  for (int64_t count = 0; count <= std::ssize(draws); ++count) {
    Positions expected(order.begin(), order.begin() + count);
    std::ranges::sort(expected);
    EXPECT_EQ(smallest_draws(draws, count), expected);
  }
}

TEST(DrawnPositions, AreBetweenTheFirstAndTheLast) {
  EXPECT_EQ(drawn_positions({0, 0, 0}, 4, 8, 4), (Positions{4, 5, 6, 7}));
  EXPECT_EQ(drawn_positions({0, 0, 0}, 4, 8, 0), Positions{});
  EXPECT_EQ(drawn_positions({0, 0, 0}, 4, 4, 0), Positions{});
}

RC_GTEST_PROP(DrawnPositions, OfASmallerCountAreAmongThoseOfALarger, ()) {
  const int64_t first = *integer(0, 40), last = *integer(first, first + 60);
  const int64_t more = *integer(0, last - first), fewer = *integer(0, more);
  const DrawSeed seed{*integer(0, 1000), *integer(0, 40), *integer(0, 8)};
  const Positions many = drawn_positions(seed, first, last, more),
                  few = drawn_positions(seed, first, last, fewer);
  RC_ASSERT(std::ssize(many) == more);
  RC_ASSERT(std::ssize(few) == fewer);
  RC_ASSERT(std::ranges::includes(many, few));
}

// Of n independent draws with probability p, the number X of successes has P(|X - np| >= t) <= 2
// exp(-2 t^2 / n) (Hoeffding). With `events` of them at once, all are within t with a probability of at least
// 1 - events * that bound; t is chosen so that this is 1 - 1e-9 for draws that are uniform and independent.
double most_deviation(int64_t n, int64_t events) {
  return std::sqrt(static_cast<double>(n) / 2 * std::log(2 * static_cast<double>(events) / 1e-9));
}

// Over n DrawSeeds: how often each of `candidates` positions is drawn, and each pair together.
class Frequencies {
 public:
  static constexpr int64_t kSeeds = 8192, kCandidates = 12, kDrawn = 4;

  explicit Frequencies(const std::function<DrawSeed(int64_t)>& seed_of) : pairs_(kCandidates * kCandidates) {
    for (int64_t s = 0; s < kSeeds; ++s) {
      const Positions drawn = drawn_positions(seed_of(s), 3, 3 + kCandidates, kDrawn);
      for (const int64_t i : drawn) {
        for (const int64_t j : drawn) ++pairs_[(i - 3) * kCandidates + j - 3];
      }
    }
  }

  void expect_uniform() const {
    const double single = static_cast<double>(kSeeds * kDrawn) / kCandidates;
    const double pair = single * (kDrawn - 1) / (kCandidates - 1);
    const double most = most_deviation(kSeeds, kCandidates * kCandidates);
    for (int64_t i = 0; i < kCandidates; ++i) {
      for (int64_t j = 0; j < kCandidates; ++j) {
        const double found = static_cast<double>(pairs_[i * kCandidates + j]);
        EXPECT_NEAR(found, i == j ? single : pair, most) << i << " and " << j;
      }
    }
  }

 private:
  std::vector<int64_t> pairs_;
};

TEST(DrawnPositions, AreEveryPositionAndPairEquallyOftenOverSeedsLayersAndHeads) {
  const std::pair<std::string, std::function<DrawSeed(int64_t)>> over[] = {
      {"seeds",
       [](int64_t s) {
         return DrawSeed{s, 0, 0};
       }},
      {"layers",
       [](int64_t s) {
         return DrawSeed{0, s, 0};
       }},
      {"KV heads",
       [](int64_t s) {
         return DrawSeed{0, 0, s};
       }},
      {"seeds of a later layer and head", [](int64_t s) {
         return DrawSeed{s, 17, 5};
       }}};
  for (const auto& [name, seed_of] : over) {
    SCOPED_TRACE(name);
    Frequencies(seed_of).expect_uniform();
  }
}

// Two sets of k among m that are drawn independently have k^2 / m positions in common on average; of each
// position the number of draws that have it in both is binomial with p = (k/m)^2.
TEST(DrawnPositions, OfOneSeedAreIndependentBetweenSeedsLayersAndHeads) {
  constexpr int64_t kSeeds = 8192, kCandidates = 12, kDrawn = 4;
  const std::pair<DrawSeed, DrawSeed> pairs[] = {{{0, 0, 0}, {1, 0, 0}}, {{0, 0, 0}, {0, 1, 0}},
                                                 {{0, 0, 0}, {0, 0, 1}}, {{0, 1, 0}, {0, 0, 1}},
                                                 {{1, 0, 0}, {0, 1, 0}}, {{0, 1, 2}, {0, 2, 1}}};
  for (const auto& [one, other] : pairs) {
    std::vector<int64_t> both(kCandidates);
    for (int64_t s = 0; s < kSeeds; ++s) {
      const auto drawn = [&](DrawSeed seed) {
        seed.seed += 2 * s;
        return drawn_positions(seed, 0, kCandidates, kDrawn);
      };
      Positions common;
      std::ranges::set_intersection(drawn(one), drawn(other), std::back_inserter(common));
      for (const int64_t i : common) ++both[i];
    }
    const double expected = static_cast<double>(kSeeds * kDrawn * kDrawn) / (kCandidates * kCandidates);
    for (const int64_t found : both) {
      EXPECT_NEAR(static_cast<double>(found), expected, most_deviation(kSeeds, kCandidates));
    }
  }
}

}  // namespace
}  // namespace kvbound::draw_test
