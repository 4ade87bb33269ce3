#include "bench_scores.hpp"

#include <memory>
#include <string>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/session/session.hpp>

#include "bench_layer.hpp"
#include "bench_roofline.hpp"

namespace kvbound::sim {
namespace {

BenchResult bench_window_scores(const BenchOptions& options, const std::string& name,
                                reference::Change change) {
  const BenchLayer layer(options);
  const int64_t rows = layer.shape.query_heads * BenchLayer::kWindow;
  const double flops = 3 * 2 * static_cast<double>(rows * options.shape.tokens * layer.shape.head_dim);
  const BenchPiece cube = cube_piece(options, options.threads, 2);
  const std::vector<BenchPiece> pieces{
      {name, flops, "FLOP",
       [&] { reference::window_scores(layer.view(), BenchLayer::kWindow, change, Space::head); }},
      cube,
      exponential_piece(rows, options.shape.tokens, "its exponentials alone", vector_exponentials)};
  const auto times_rooflines = [&](std::span<const double> seconds) {
    return seconds[0] / (flops / (cube.work / seconds[1]) + seconds[2]);
  };
  const std::string no_ratio = no_roofline(options.threads);
  BenchResult result =
      no_ratio.empty() ? measure(pieces, options.rounds, times_rooflines) : measure(pieces, options.rounds);
  result.ratio_meaning = "times its products at the DGEMM rate and its exponentials alone";
  result.no_ratio = no_ratio;
  result.goal = at_most(1.25);
  return result;
}

// Decode steps timed together, so that the resolution of the clock does not matter.
constexpr int64_t kSteps = 8;

// Every step has the same new entry and the same queries.
StepView step_of(const BenchLayer& layer) {
  return {layer.keys.view().row_of_slices(0), layer.values.view().row_of_slices(0),
          layer.queries.view().row_of_slices(0)};
}

Policy evicting_policy(const Score& score, const Merge& merge = {}) {
  constexpr int64_t kSinks = 4;
  Policy policy;
  policy.host = H2o{BenchLayer::kWindow, kSinks, BenchLayer::kWindow};
  policy.score = score;
  policy.merge = merge;
  return policy;
}

// Attention of all heads' queries over the first entries of their KV heads.
void attend(const BenchLayer& layer, int64_t entries) {
  const StepView step = step_of(layer);
  const int64_t group_size = layer.shape.group_size();
  reference::parallel_for(layer.shape.kv_heads, [&](int64_t g) {
    reference::attention(step.queries.middle_rows(g * group_size, group_size),
                         layer.keys.slice(g).middle_rows(0, entries),
                         layer.values.slice(g).middle_rows(0, entries), layer.view().scale);
  });
}

BenchResult bench_step(const BenchOptions& options, const std::string& name, const Policy& policy,
                       double goal) {
  const BenchLayer layer(options);
  const std::vector<int64_t> budgets = bench_budgets(options);
  const int64_t entries = budgets.front() + 1;  // including the new one
  const auto session = reference::make_session();
  session->compress(layer.view(), policy, budgets);
  BenchResult result =
      measure({{name, static_cast<double>(kSteps), "steps",
                [&] {
                  for (int64_t i = 0; i < kSteps; ++i) session->step(step_of(layer));
                }},
               {"attention over the same cache", static_cast<double>(kSteps), "steps",
                [&] {
                  for (int64_t i = 0; i < kSteps; ++i) attend(layer, entries);
                }}},
              options.rounds, [](std::span<const double> seconds) { return seconds[0] / seconds[1]; });
  result.ratio_meaning = "times attention over the same cache";
  result.goal = at_most(goal);
  return result;
}

// Goals for scores that need the attention weights alone, and for scores that need one more product.
constexpr double kWithoutProduct = 1.5, kWithProduct = 3;

}  // namespace

BenchResult bench_joint_scores(const BenchOptions& options) {
  return bench_window_scores(options, "window-scores-joint", reference::Change::joint);
}
BenchResult bench_exact_scores(const BenchOptions& options) {
  return bench_window_scores(options, "window-scores-exact", reference::Change::exact);
}

BenchResult bench_step_attention(const BenchOptions& options) {
  return bench_step(options, "step-attention", evicting_policy(AttentionScore{}), kWithoutProduct);
}
BenchResult bench_step_value(const BenchOptions& options) {
  return bench_step(options, "step-value", evicting_policy(ObcacheValue{}), kWithoutProduct);
}
BenchResult bench_step_key(const BenchOptions& options) {
  return bench_step(options, "step-key", evicting_policy(ObcacheKey{}), kWithProduct);
}
BenchResult bench_step_joint(const BenchOptions& options) {
  return bench_step(options, "step-joint", evicting_policy(ObcacheJoint{}), kWithProduct);
}
BenchResult bench_step_exact(const BenchOptions& options) {
  return bench_step(options, "step-exact", evicting_policy(ExactRemoval{}), kWithProduct);
}
BenchResult bench_step_keepkv(const BenchOptions& options) {
  KeepKv every_entry;  // merges every evicted entry
  every_entry.threshold.reset();
  return bench_step(options, "step-keepkv", evicting_policy(AttentionScore{}, every_entry), kWithProduct);
}

}  // namespace kvbound::sim
