#include "value_weights.hpp"

#include <algorithm>
#include <numeric>
#include <variant>

#include "merge_baselines.hpp"
#include "weighted_mean.hpp"

namespace kvbound::reference {
namespace {

// Directions in which the heads' means differ by less than this share of the most are rounding.
constexpr double kRank = 1e-9;

// The mean of the heads' log scores.
std::vector<double> mean_scores(MatrixView log_scores) {
  return weighted_mean(std::vector<double>(log_scores.rows, 1.0 / static_cast<double>(log_scores.rows)),
                       log_scores);
}

// lambda, of sum 1, of the mixture of `means` that is nearest to a value.
std::vector<double> nearest_mixture(MatrixView means, VectorView value) {
  Matrix apart(means.cols, means.rows - 1);  // from the first mean
  std::vector<double> target(means.cols);
  for (int64_t c = 0; c < means.cols; ++c) {
    for (int64_t h = 1; h < means.rows; ++h) apart(c, h - 1) = means(h, c) - means(0, c);
    target[c] = value[c] - means(0, c);
  }
  std::vector<double> mixture = PseudoInverse(apart, kRank).solve(target);
  mixture.insert(mixture.begin(), 1 - std::reduce(mixture.begin(), mixture.end()));
  return mixture;
}

// Weights without negative ones, and of sum 1, as those given, which may be negative by rounding, are.
std::vector<double> proper(std::vector<double> weights) {
  for (double& weight : weights) weight = std::max(weight, 0.0);
  const double sum = std::reduce(weights.begin(), weights.end());
  for (double& weight : weights) weight /= sum;
  return weights;
}

struct ValueWeights {
  const ClusterMembers& members;
  VectorView value;

  std::vector<double> operator()(const KeepKv& options) const { return by_scores(options.gqa); }
  std::vector<double> operator()(const ConvexMerge& options) const { return by_scores(options.gqa); }
  std::vector<double> operator()(const D2o&) const { return similarity_weights(members.keys); }
  std::vector<double> operator()(const KvMerger&) const { return gaussian_weights(members.keys); }
  std::vector<double> operator()(const NoMerge&) const { return {}; }
  std::vector<double> operator()(const Cam&) const { return {}; }

 private:
  std::vector<double> by_scores(MergeGqa gqa) const {
    const MatrixView scores = members.log_scores;
    if (scores.rows == 1 || gqa == MergeGqa::mean) return cluster_mean(members, mean_scores(scores)).weights;
    Matrix weights, means;
    for (int64_t h = 0; h < scores.rows; ++h) {
      const ClusterMean mean = cluster_mean(members, scores.row(h));
      weights.append_row(mean.weights);
      means.append_row(mean.value);
    }
    return proper(weighted_mean(nearest_mixture(means, value), weights));
  }
};

}  // namespace

std::vector<double> value_weights(const Merge& merge, const ClusterMembers& members, VectorView value) {
  return std::visit(ValueWeights{members, value}, merge);
}

}  // namespace kvbound::reference
