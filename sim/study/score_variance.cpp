#include "score_variance.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "mean.hpp"

namespace kvbound::sim {
namespace {

// The variance of the first `entries` columns.
std::vector<double> variances(const std::deque<std::vector<double>>& queries, size_t entries) {
  const auto count = static_cast<double>(queries.size());
  std::vector<double> means(entries), result(entries);
  for (const std::vector<double>& scores : queries) {
    for (size_t j = 0; j < entries; ++j) means[j] += scores[j];
  }
  for (double& mean : means) mean /= count;
  for (const std::vector<double>& scores : queries) {
    for (size_t j = 0; j < entries; ++j) result[j] += (scores[j] - means[j]) * (scores[j] - means[j]);
  }
  for (double& variance : result) variance /= count;
  return result;
}

}  // namespace

void ScoreVariance::observe(std::vector<double> scores) {
  if (scores.size() < counts_.size()) {
    throw ShapeMismatch(fmt::format("scores is {} but {} entries are known", scores.size(), counts_.size()));
  }
  require_finite("scores", scores);
  counts_.resize(scores.size());
  means_.resize(scores.size());
  squares_.resize(scores.size());
  for (size_t j = 0; j < scores.size(); ++j) {
    const double change = scores[j] - means_[j];
    means_[j] += change / static_cast<double>(++counts_[j]);
    squares_[j] += change * (scores[j] - means_[j]);
  }
  last_.push_back(std::move(scores));
  if (std::ssize(last_) > window_) last_.pop_front();
}

MeanVariances ScoreVariance::means() const {
  // A query sees all entries of the queries before, so those of enough queries come first.
  const auto entries =
      std::ranges::partition_point(counts_, [&](int64_t count) { return count > window_; }) - counts_.begin();
  const std::vector<double> window = variances(last_, static_cast<size_t>(entries));
  std::vector<double> whole, ratios;
  for (size_t j = 0; j < window.size(); ++j) {
    whole.push_back(squares_[j] / static_cast<double>(counts_[j]));
    if (whole[j] >= std::numeric_limits<double>::min()) ratios.push_back(window[j] / whole[j]);
  }
  return {mean(whole), mean(window), mean(ratios)};
}

}  // namespace kvbound::sim
