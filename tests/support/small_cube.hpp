// A small cube for tests of its views.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include <kvbound/sim/figures/cube.hpp>

namespace kvbound::test {

inline sim::Figure named(const std::string& name, sim::Format format = sim::Format::number) {
  return {.name = name, .heading = name, .meaning = "of a test", .format = format};
}

/// [2 runs, 3 heads]: L, which is 0.5, 1, NaN, infinity, 0 and 1/8, a count, and a bound,
/// which is NaN everywhere.
inline sim::Cube small_cube() {
  sim::Figure policy = named("policy"), entries = named("entries", sim::Format::count);
  policy.shown = entries.shown = sim::Shown::always;
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const sim::SharedAxis runs = sim::axis("run", {sim::text_column(policy, {"a, \"b\"", "c"}),
                                                 sim::number_column(entries, {1e6, 20})}),
                        heads = sim::counted_axis("head", named("head"), 3);
  return {"heads",
          {runs, heads},
          {sim::number_column(named("L"), {0.5, 1, sim::kUndefined, kInfinite, 0, 0.125}),
           sim::number_column(named("bound"), std::vector<double>(6, sim::kUndefined)),
           sim::number_column(named("count", sim::Format::count), {1, 2, 3, 4, 5, 6})}};
}

}  // namespace kvbound::test
