#include "bench_merge.hpp"

#include <kvbound/reference/merging/nearest_key.hpp>

#include "bench_layer.hpp"
#include "bench_roofline.hpp"

namespace kvbound::sim {

BenchResult bench_nearest_key(const BenchOptions& options) {
  const int64_t tokens = options.shape.tokens, head_dim = options.shape.layer.head_dim;
  const int64_t staying = bench_budgets(options).front();
  // Which keys are kept does not affect the time, so the first ones of random keys are.
  const Matrix keys = random_matrix(tokens, head_dim, BenchLayer::random(options, 1));
  const MatrixView stay = keys.view().middle_rows(0, staying),
                   leave = keys.view().middle_rows(staying, tokens - staying);
  const double flops = 2 * static_cast<double>(leave.rows * stay.rows * head_dim);
  const BenchPiece cube = cube_piece(options, options.threads, 2);
  const BenchPiece search{"nearest-key", flops, "FLOP", [&] { reference::nearest_keys(leave, stay); }};
  const auto share = [&](std::span<const double> seconds) {
    return flops / seconds[0] / (cube.work / seconds[1]);
  };
  const std::string no_ratio = no_roofline(options.threads);
  BenchResult result = no_ratio.empty() ? measure({search, cube}, options.rounds, share)
                                        : measure({search, cube}, options.rounds);
  result.ratio_meaning = "share of the DGEMM rate";
  result.no_ratio = no_ratio;
  result.goal = at_least(0.8);
  return result;
}

}  // namespace kvbound::sim
