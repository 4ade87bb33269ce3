#include <gtest/gtest.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/sim/diff/judge/running_errors.hpp>

#include "support/trace_layer.hpp"

namespace kvbound::sim::running_errors_test {
namespace {

// One query head's cache of positions 0, 2 and 3, stored in another order, whose prompt scores
// have known error bounds.
struct Case {
  explicit Case(const Host& host_)
      : host(host_),
        layer(test::weighted_layer(3, {{1, 1, 1, 1, 1}})),
        prompt_errors(test::matrix({{0.5, 0.25, 0.125}})),
        eviction(layer.prompt(), {host, {}, {}, {}, {}}, 0, 3, test::matrix({{2, 2, 2, 2}}), {}, filled()),
        errors(prompt_errors, 1, 5, arithmetic) {
    arithmetic.unit = 0x1p-4;
  }

  const reference::HeadCache& filled() {
    for (const int64_t position : {3, 0, 2}) cache.append(position, std::vector{0.0}, std::vector{1.0});
    return cache;
  }

  std::vector<double> after(const Matrix& contributions) {
    errors.update(rules_of(host, 3, 3), eviction, cache.positions, contributions);
    const Matrix rows = errors.at({0, 1, 2, 3});
    return {rows.numbers().begin(), rows.numbers().end()};
  }

  Host host;
  traces::Layer layer;
  Matrix prompt_errors;
  reference::HeadCache cache;
  reference::Arithmetic arithmetic = reference::double_precision();
  reference::HeadEviction eviction;
  RunningErrors errors;
};

const Matrix kContributions = test::matrix({{1, 2, 4}});  // for positions 3, 0 and 2

TEST(RunningErrors, OfASumGrowByEachContributionsAndByTheAdditions) {
  Case h2o(H2o{1, 0, 1});
  const std::vector<double> errors = h2o.after(kContributions);
  const MatrixView scores = h2o.eviction.head_scores();
  const double unit = 0x1p-4;
  const auto expected = [&](double before, double own, int64_t entry) {
    return before + own + unit * (scores(0, entry) + before + own);
  };
  EXPECT_NEAR(errors[0], expected(0.5, 2, 1), 1e-12);
  EXPECT_EQ(errors[1], 0.25) << "it is not in the cache";
  EXPECT_NEAR(errors[2], expected(0.125, 4, 2), 1e-12);
  EXPECT_NEAR(errors[3], expected(0, 1, 0), 1e-12) << "a new entry's are its own";
  EXPECT_GT(h2o.after(kContributions)[0], errors[0] + 2) << "and grow on";
}

TEST(RunningErrors, OfTheLastQueryAreItsOwn) {
  Case tova(Tova{0});
  EXPECT_EQ(tova.after(kContributions), (std::vector<double>{2, 0.25, 4, 1}));
  EXPECT_EQ(tova.after(test::matrix({{0.5, 0.25, 0.125}})), (std::vector<double>{0.25, 0.25, 0.125, 0.5}));
}

TEST(RunningErrors, BeginWithThePromptsOrNone) {
  const reference::Arithmetic arithmetic = reference::double_precision();
  const Matrix prompt = test::matrix({{1, 2}, {3, 4}});
  const RunningErrors errors(prompt, 2, 4, arithmetic), none({}, 2, 4, arithmetic);
  EXPECT_EQ(errors.at({1, 3})(1, 0), 4);
  EXPECT_EQ(errors.at({1, 3})(1, 1), 0);
  EXPECT_EQ(none.at({0, 1})(1, 0), 0);
}

}  // namespace
}  // namespace kvbound::sim::running_errors_test
