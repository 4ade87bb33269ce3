#include "running_errors.hpp"

#include <algorithm>

#include <kvbound/reference/bounds/group_errors.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/eviction/group_reduction.hpp>
#include <kvbound/reference/numerics/columns.hpp>

namespace kvbound::sim {

RunningErrors::RunningErrors(MatrixView prompt, int64_t group_size, int64_t positions,
                             const reference::Arithmetic& arithmetic)
    : arithmetic_(&arithmetic), errors_(group_size, positions) {
  for (int64_t h = 0; h < prompt.rows; ++h) std::ranges::copy(prompt.row(h), errors_.row(h).begin());
}

void RunningErrors::update(const HostRules& rules, const reference::HeadEviction& eviction,
                           const std::vector<int64_t>& positions, const Matrix& contributions) {
  const MatrixView scores = eviction.head_scores();
  for (int64_t h = 0; h < errors_.rows(); ++h) {
    for (int64_t entry = 0; entry < std::ssize(positions); ++entry) {
      double& error = errors_(h, positions[entry]);
      const double own = contributions(h, entry);
      switch (rules.step_update) {
        case StepUpdate::none:
          break;
        case StepUpdate::accumulate:
          error = reference::running_sum_error(scores(h, entry), error, own, *arithmetic_);
          break;
        case StepUpdate::replace:
          error = own;
          break;
      }
    }
  }
}

Matrix RunningErrors::at(const std::vector<int64_t>& positions) const {
  return reference::columns_of(errors_, positions);
}

BoundedScores RunningErrors::reduced(const Matrix& scores, const std::vector<int64_t>& positions,
                                     GroupReduction group) const {
  const Matrix sums = reference::reduce_group(scores, scores.rows(), group);
  const Matrix errors = reference::group_errors(scores, at(positions), scores.rows(), group, *arithmetic_);
  return {{sums.row(0).begin(), sums.row(0).end()}, {errors.row(0).begin(), errors.row(0).end()}};
}

}  // namespace kvbound::sim
