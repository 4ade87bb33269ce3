#include "spread_rule.hpp"

#include <algorithm>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/merging/cam.hpp>

namespace kvbound::sim {

MeanAttention mean_attention(MatrixView queries, MatrixView keys, double scale, MatrixView key_errors,
                             const reference::Arithmetic& arithmetic) {
  const Matrix weights = reference::attention_weights(queries, keys, scale, keys.rows - 1);
  const Matrix off =
      reference::attention_errors(queries, keys, keys, scale, {}, arithmetic, {key_errors, {}}).weights;
  const Matrix mean = reference::group_mean(weights, queries.rows);
  const Matrix mean_off = reference::group_mean_errors(weights, off, queries.rows, arithmetic);
  return {{mean.row(0).begin(), mean.row(0).end()}, {mean_off.row(0).begin(), mean_off.row(0).end()}};
}

SpreadAmbiguity spread_ambiguity(const Cam& cam, const MeanAttention& attention, int64_t entry,
                                 std::span<const int64_t> following, int64_t kv_head, int64_t position,
                                 const reference::Arithmetic& arithmetic) {
  if (following.empty()) return {};
  double sum = 0, off = 0;
  for (const int64_t other : following) {
    sum += attention.weights[other];
    off += attention.errors[other];
  }
  const auto count = std::ssize(following);
  const double weight = attention.weights[entry], weight_off = attention.errors[entry];
  const double rounding = reference::sum_rounding(count + 8, arithmetic);
  const auto probability = [&](double one, double all, double share) {
    if (one <= 0) return 0.0;
    return all <= 0 ? 1.0 : std::min(1.0, one * static_cast<double>(count) / all * (1 + share));
  };
  const double least = probability(weight - weight_off, sum + off, -rounding);
  const double most = probability(weight + weight_off, sum - off, rounding);
  return {reference::spreads(most, cam.seed, kv_head, position),
          !reference::spreads(least, cam.seed, kv_head, position)};
}

}  // namespace kvbound::sim
