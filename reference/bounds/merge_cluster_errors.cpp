#include "merge_cluster_errors.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/numerics/pseudo_inverse.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "merge_rounding.hpp"
#include "pseudo_inverse_errors.hpp"
#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

void widen(std::span<double> errors) {
  for (double& error : errors) error *= 1 + kOwnRounding;
}

using Directions = std::vector<std::vector<double>>;

// sum_c |w_c| errors_c
double by_elements(VectorView direction, VectorView errors) {
  double sum = 0;
  for (size_t c = 0; c < direction.size(); ++c) {
    if (direction[c] != 0) sum += std::abs(direction[c]) * errors[c];  // an error may be infinite
  }
  return sum;
}

// The errors of a mean's elements, and in each direction those of the mean as a whole.
struct WholeErrors {
  std::vector<double> elements, along;

  double saving(size_t direction, const Directions& directions) const {
    const double most = by_elements(directions[direction], elements);
    if (!(along[direction] < most && most < kInfinity)) return 0;
    return std::max(0.0, most * (1 - kOwnRounding) - along[direction]);
  }
  std::vector<double> savings(const Directions& directions) const {
    std::vector<double> all;
    for (size_t i = 0; i < directions.size(); ++i) all.push_back(saving(i, directions));
    return all;
  }
};

// rows_along(i, j): a bound on the error of row j in direction i
WholeErrors whole_errors(const UncertainWeights& weights, MatrixView rows, MatrixView row_errors,
                         const Directions& directions,
                         const std::function<double(size_t, int64_t)>& rows_along) {
  WholeErrors result{weights.mean_errors(rows, row_errors), {}};
  for (size_t i = 0; i < directions.size(); ++i) {
    std::vector<double> own;
    for (int64_t j = 0; j < rows.rows; ++j) own.push_back(rows_along(i, j));
    result.along.push_back(std::min(weights.error_along(directions[i], rows, row_errors, own),
                                    by_elements(directions[i], result.elements)));
  }
  return result;
}

// The same of rows of which nothing but their elements' errors is known.
WholeErrors whole_errors(const UncertainWeights& weights, MatrixView rows, MatrixView row_errors,
                         const Directions& directions) {
  return whole_errors(weights, rows, row_errors, directions,
                      [&](size_t i, int64_t j) { return by_elements(directions[i], row_errors.row(j)); });
}

// A cluster's means by one row of scores, and the errors of each.
struct MeanErrors {
  ClusterMean mean;
  WholeErrors whole_key, whole_value;
  double log_weight = 0, mean_log_score = 0, divergence = 0;

  const std::vector<double>& key() const { return whole_key.elements; }
  const std::vector<double>& value() const { return whole_value.elements; }
};

MeanErrors mean_errors(const ClusterMembers& members, VectorView scores, VectorView score_errors,
                       const MemberErrors& errors, const MergeDirections& directions,
                       const Arithmetic& arithmetic) {
  const ClusterRounding cluster(members, scores, score_errors, Evaluation::any_form, arithmetic);
  const double reach = max_abs(scores) + max_abs(score_errors);
  return {cluster.mean(),
          whole_errors(cluster.weights(), members.keys, errors.keys, directions.key),
          whole_errors(cluster.weights(), members.values, errors.values, directions.value),
          cluster.log_weight_error(),
          cluster.mean_log_score_error(reach),
          cluster.divergence_error()};
}

// The scores that determine a merge (joint: of every head; mean: their mean over heads), and their errors.
struct UncertainScores {
  Matrix scores, errors;
};

UncertainScores merging_scores(const MergeErrorsCase& given, const ClusterMembers& members,
                               const MemberErrors& errors, const Arithmetic& arithmetic) {
  const int64_t heads = members.log_scores.rows(), count = members.log_scores.cols();
  UncertainScores result{members.log_scores, errors.log_scores};
  if (heads == 1 || given.rule.gqa == MergeGqa::joint) return result;
  result = {Matrix(1, count), Matrix(1, count)};
  for (int64_t j = 0; j < count; ++j) {
    double sum = 0, size = 0, off = 0;
    for (int64_t h = 0; h < heads; ++h) {
      sum += members.log_scores(h, j);
      size += std::abs(members.log_scores(h, j));
      off += errors.log_scores(h, j);
    }
    const auto shared = static_cast<double>(heads);
    result.scores(0, j) = sum / shared;
    result.errors(0, j) = (off + gamma(shared + 2, arithmetic) * size) / shared;
  }
  return result;
}

// The queries that determine a merge (joint: all; mean: their mean), and the error of each component.
struct MergingQueries {
  Matrix rows, errors;
};

MergingQueries merging_queries(const MergeErrorsCase& given, const Arithmetic& arithmetic) {
  const MatrixView queries = given.queries;
  const bool joint = given.rule.gqa == MergeGqa::joint;
  MergingQueries result{Matrix(joint ? queries.rows : 1, queries.cols),
                        Matrix(joint ? queries.rows : 1, queries.cols)};
  const double heads = joint ? 1 : static_cast<double>(queries.rows);
  for (int64_t h = 0; h < queries.rows; ++h) {
    const int64_t row = joint ? h : 0;
    for (int64_t c = 0; c < queries.cols; ++c) {
      result.rows(row, c) += queries(h, c) / heads;
      result.errors(row, c) +=
          (gamma(heads + 3, arithmetic) + arithmetic.input) * std::abs(queries(h, c)) / heads +
          arithmetic.input_floor / heads;
    }
  }
  return result;
}

// Errors of the correction KL q / (scale ||q||^2).
std::vector<double> single_correction_errors(const MergingQueries& queries, double scale,
                                             const MeanErrors& mean, const Arithmetic& arithmetic) {
  const VectorView query = queries.rows.row(0);
  std::vector<double> errors(query.size());
  const double size = norm(query), off = norm(queries.errors.row(0));
  if (size == 0 && off == 0) return errors;
  const double far = off < size / 2 ? off / (size * (size - off)) +
                                          gamma(2 * static_cast<double>(query.size()) + 16, arithmetic) / size
                                    : kInfinity;
  const double divergence = mean.mean.divergence;
  for (size_t c = 0; c < errors.size(); ++c) {
    const double share = std::abs(query[c]) / (size * size);
    errors[c] =
        (mean.divergence * (share + far) + divergence * far + gamma(8, arithmetic) * divergence * share) /
        std::abs(scale);
    if (!(errors[c] < kInfinity)) errors[c] = kInfinity;
  }
  return errors;
}

// What the shortest correction is to add to the logits of all heads, divided by the scale.
struct UncertainTargets {
  std::vector<double> targets, errors;
};

UncertainTargets correction_targets(const MergeErrorsCase& given, const MergingQueries& queries,
                                    const std::vector<MeanErrors>& means, VectorView mean_key,
                                    VectorView mean_key_errors, const Arithmetic& arithmetic) {
  const double scale = std::abs(given.scale);
  const auto columns = static_cast<double>(mean_key.size());
  std::vector<double> targets, target_errors;
  for (size_t h = 0; h < means.size(); ++h) {
    const VectorView query = queries.rows.row(h);
    const VectorView query_errors = queries.errors.row(h);
    const MeanErrors& mean = means[h];
    double target = -mean.mean.divergence / given.scale, error = 0;
    for (size_t c = 0; c < mean_key.size(); ++c) {
      const double key = mean.mean.key[c], apart = key - mean_key[c], size = std::abs(query[c]);
      target += query[c] * apart;
      error += (size + query_errors[c]) * (mean.key()[c] + mean_key_errors[c]) +
               query_errors[c] * std::abs(apart) +
               gamma(columns + 8, arithmetic) * size * (std::abs(key) + std::abs(mean_key[c]));
    }
    targets.push_back(target);
    target_errors.push_back(error + mean.divergence / scale +
                            gamma(8, arithmetic) * mean.mean.divergence / scale);
  }
  return {targets, target_errors};
}

// Adds the shortest correction towards the target logits of all heads to their mean key, for every rank that
// rounding allows, and its errors to those of the mean key.
void correct_jointly(const MergeErrorsCase& given, const MergingQueries& queries,
                     const std::vector<MeanErrors>& means, VectorView mean_key, VectorView mean_key_errors,
                     const Arithmetic& arithmetic, MergedEntryErrors& result) {
  const UncertainTargets wanted =
      correction_targets(given, queries, means, mean_key, mean_key_errors, arithmetic);
  const InverseErrors inverses =
      pseudo_inverse_errors(queries.rows, queries.errors, given.rule.rank, arithmetic);
  const PseudoInverse solver(queries.rows, 0);
  const double size = norm(wanted.targets), off = norm(wanted.errors);
  const double rounding = gamma(static_cast<double>(mean_key.size() + means.size()) + 8, arithmetic);
  for (const TruncatedInverse& inverse : inverses.ranks) {
    // A pseudo-inverse that is off by less than half of its own size has at most twice that size.
    const double error = inverse.error * size + 2 * inverse.size * (off + rounding * size);
    PossibleKey& possible = result.possible_keys.emplace_back();
    possible.key = solver.solve(wanted.targets, inverse.rank);
    for (size_t c = 0; c < mean_key.size(); ++c) {
      possible.key[c] += mean_key[c];
      possible.errors.push_back(mean_key_errors[c] + (error < kInfinity ? error : kInfinity));
    }
    widen(possible.errors);
  }
  result.condition_number = inverses.condition_number;
}

// Bounds the errors of all possible keys, of which the first is the reference's own.
std::vector<double> errors_of_all(const std::vector<PossibleKey>& possible_keys) {
  const PossibleKey& own = possible_keys.front();
  std::vector<double> errors = own.errors;
  for (size_t i = 1; i < possible_keys.size(); ++i) {
    const PossibleKey& other = possible_keys[i];
    for (size_t c = 0; c < errors.size(); ++c) {
      errors[c] = std::max(errors[c], std::abs(other.key[c] - own.key[c]) + own.errors[c] + other.errors[c]);
    }
  }
  return errors;
}

// Errors of mean_h k-_h, which is added to `mean_key`.
std::vector<double> mean_key_errors(const std::vector<MeanErrors>& means, std::span<double> mean_key,
                                    const Arithmetic& arithmetic) {
  const auto heads = static_cast<double>(means.size());
  std::vector<double> errors(mean_key.size());
  for (size_t c = 0; c < errors.size(); ++c) {
    for (const MeanErrors& mean : means) {
      mean_key[c] += mean.mean.key[c] / heads;
      errors[c] += (mean.key()[c] + gamma(heads + 2, arithmetic) * std::abs(mean.mean.key[c])) / heads;
    }
  }
  return errors;
}

enum class ZipCase { scaled, singular, unknown };

ZipCase zip_case(const MeanErrors& mean, VectorView scores, VectorView errors) {
  if (!(mean.divergence < kInfinity)) return ZipCase::unknown;
  const double size = std::abs(mean.mean.mean_log_score), most = max_abs(scores), off = max_abs(errors);
  const double limit = kSingularZip * (most + off) * (1 + kOwnRounding);
  if (size - mean.mean_log_score > limit) return ZipCase::scaled;
  const bool surely = size + mean.mean_log_score < kSingularZip * (most - off) * (1 - kOwnRounding);
  return surely && mean.mean.divergence > mean.divergence ? ZipCase::singular : ZipCase::unknown;
}

// Errors of k- (1 - KL / m).
std::vector<double> zip_key_errors(const MeanErrors& mean, const Arithmetic& arithmetic) {
  const double size = std::abs(mean.mean.mean_log_score), least = size - mean.mean_log_score;
  const double share = mean.mean.divergence / size;
  const double scale = std::abs(1 - mean.mean.divergence / mean.mean.mean_log_score);
  const double off =
      (mean.divergence + share * mean.mean_log_score) / least + 4 * unit(arithmetic) * (1 + share);
  std::vector<double> errors;
  for (size_t c = 0; c < mean.key().size(); ++c) {
    const double number = std::abs(mean.mean.key[c]);
    errors.push_back((scale + off) * mean.key()[c] + off * number + 2 * unit(arithmetic) * scale * number);
  }
  return errors;
}

void add(VectorView more, std::vector<double>& errors) {
  for (size_t c = 0; c < errors.size(); ++c) errors[c] += more[c];
}

// Of mean_h k-_h in each direction.
std::vector<double> mean_key_savings(const std::vector<MeanErrors>& means, const Directions& directions) {
  std::vector<double> savings(directions.size());
  for (const MeanErrors& mean : means) add(mean.whole_key.savings(directions), savings);
  for (double& saving : savings) saving /= static_cast<double>(means.size());
  return savings;
}

void derive_key_errors(const MergeErrorsCase& given, const std::vector<MeanErrors>& means,
                       const UncertainScores& scores, const Directions& directions,
                       const Arithmetic& arithmetic, MergedEntryErrors& result) {
  std::vector<double> mean_key(means.front().key().size());
  result.key = mean_key_errors(means, mean_key, arithmetic);
  result.key_savings = mean_key_savings(means, directions);
  const MeanErrors& first = means.front();
  switch (given.rule.key) {
    case MergedKey::convex:
      return;
    case MergedKey::zip:
      switch (zip_case(first, scores.scores.row(0), scores.errors.row(0))) {
        case ZipCase::scaled:
          result.key = zip_key_errors(first, arithmetic);
          result.key_savings.clear();  // the mean key's errors are scaled, too
          return;
        case ZipCase::unknown:
          std::ranges::fill(result.key, kInfinity);
          return;
        case ZipCase::singular:  // the minimum-norm key is used
          break;
      }
      break;
    case MergedKey::min_norm:
      break;
  }
  const MergingQueries queries = merging_queries(given, arithmetic);
  if (means.size() == 1) {
    add(single_correction_errors(queries, given.scale, first, arithmetic), result.key);
    return;
  }
  correct_jointly(given, queries, means, mean_key, result.key, arithmetic, result);
  result.key = errors_of_all(result.possible_keys);
  if (result.possible_keys.size() == 1) {
    result.possible_keys.clear();
  } else {
    result.key_savings.clear();  // its directions are of one key
  }
}

// Errors of sum_h c_h v-_h / sum_h c_h.
WholeErrors joint_value_errors(const MergeErrorsCase& given, const std::vector<MeanErrors>& means,
                               const Directions& directions, const Arithmetic& arithmetic) {
  if (means.size() == 1) return means.front().whole_value;
  std::vector<double> logits, off;
  Matrix values, errors;
  for (size_t h = 0; h < means.size(); ++h) {
    const double share = means[h].mean.log_weight - given.log_denominators[h];
    logits.push_back(2 * share);
    off.push_back(2 * (means[h].log_weight + given.denominator_errors[h]) +
                  4 * unit(arithmetic) *
                      (std::abs(means[h].mean.log_weight) + std::abs(given.log_denominators[h])));
    values.append_row(means[h].mean.value);
    errors.append_row(means[h].value());
  }
  return whole_errors(UncertainWeights(logits, off, Evaluation::any_form, arithmetic), values, errors,
                      directions, [&](size_t i, int64_t h) { return means[h].whole_value.along[i]; });
}

// Errors of merged entries whose weights depend on keys alone.
MergedEntryErrors by_keys(VectorView logits, VectorView off, const ClusterMembers& members,
                          const MemberErrors& errors, const MergeDirections& directions,
                          const Arithmetic& arithmetic) {
  const UncertainWeights weights(logits, off, Evaluation::any_form, arithmetic);
  WholeErrors keys = whole_errors(weights, members.keys, errors.keys, directions.key),
              values = whole_errors(weights, members.values, errors.values, directions.value);
  MergedEntryErrors result;
  result.key_savings = keys.savings(directions.key);
  result.value_savings = values.savings(directions.value);
  result.key = std::move(keys.elements);
  result.value = std::move(values.elements);
  return result;
}

}  // namespace

MergedEntryErrors merge_cluster_errors(const MergeErrorsCase& given, const ClusterMembers& members,
                                       const MemberErrors& errors, const Arithmetic& arithmetic,
                                       const MergeDirections& directions) {
  const UncertainScores scores = merging_scores(given, members, errors, arithmetic);
  std::vector<MeanErrors> means;
  for (int64_t h = 0; h < scores.scores.rows(); ++h) {
    means.push_back(
        mean_errors(members, scores.scores.row(h), scores.errors.row(h), errors, directions, arithmetic));
  }
  MergedEntryErrors result;
  derive_key_errors(given, means, scores, directions.key, arithmetic, result);
  WholeErrors value = joint_value_errors(given, means, directions.value, arithmetic);
  result.value_savings = value.savings(directions.value);
  result.value = std::move(value.elements);
  widen(result.key);
  widen(result.value);
  for (int64_t h = 0; h < members.log_scores.rows(); ++h) {
    const ClusterRounding own(members, members.log_scores.row(h), errors.log_scores.row(h),
                              Evaluation::any_form, arithmetic);
    result.log_scores.push_back(own.log_weight_error() * (1 + kOwnRounding));
  }
  return result;
}

double cosine_error(VectorView key, VectorView key_errors, VectorView other, VectorView other_errors,
                    const Arithmetic& arithmetic) {
  const double size = norm(key), off = norm(key_errors), other_size = norm(other),
               other_off = norm(other_errors);
  if (size == 0 || other_size == 0)
    return (size == 0 && off > 0) || (other_size == 0 && other_off > 0) ? 2 : 0;
  const auto columns = static_cast<double>(key.size());
  const double lost =
      2 * columns * arithmetic.smallest / std::min({1.0, size * size, other_size * other_size});
  Arithmetic of_products = arithmetic;
  of_products.input = 0;  // what storage does to keys is among their errors
  const double product = product_error(std::ssize(key), 0, of_products);
  const double lengths = gamma(columns + 11, arithmetic);
  const double error = 2 * (off / size + other_off / other_size) + product + lengths * (1 + product) + lost;
  return std::min(2.0, error * (1 + kOwnRounding));
}

MergedEntryErrors similarity_mean_errors(const ClusterMembers& members, const MemberErrors& errors,
                                         const Arithmetic& arithmetic, const MergeDirections& directions) {
  const std::vector<double> weights = similarity_weights(members.keys);
  std::vector<double> logits, off;
  for (size_t j = 0; j < weights.size(); ++j) {
    const auto row = static_cast<int64_t>(j);
    logits.push_back(std::log(weights[j]));
    // gamma covers the rounding of the reference's own log weight, whose size is at most 2 + ln(members).
    off.push_back((j == 0 ? 0
                          : cosine_error(members.keys.row(row), errors.keys.row(row), members.keys.row(0),
                                         errors.keys.row(0), arithmetic)) +
                  gamma(static_cast<double>(weights.size()) + 12, arithmetic));
  }
  return by_keys(logits, off, members, errors, directions, arithmetic);
}

MergedEntryErrors gaussian_mean_errors(const ClusterMembers& members, const MemberErrors& errors,
                                       const Arithmetic& arithmetic, const MergeDirections& directions) {
  const int64_t count = members.keys.rows(), columns = members.keys.cols();
  const auto others = static_cast<double>(count - 1);
  std::vector<double> distances(count), off(static_cast<size_t>(count));
  const double share =
      gamma(2 * static_cast<double>(columns) + 8, arithmetic) + 2 * arithmetic.tensor_share();
  for (int64_t j = 1; j < count; ++j) {
    for (int64_t c = 0; c < columns; ++c) {
      const double apart = std::abs(members.keys(j, c) - members.keys(0, c));
      const double moved =
          errors.keys(j, c) + errors.keys(0, c) +
          2 * unit(arithmetic) * (std::abs(members.keys(j, c)) + std::abs(members.keys(0, c)));
      distances[j] += apart * apart;
      off[j] += moved * (2 * apart + moved);
    }
    off[j] += share * (distances[j] + off[j]);
  }
  const double whole = sum(distances),
               whole_off = sum(off) + gamma(others + 2, arithmetic) * (whole + sum(off));
  std::vector<double> logits(count), logit_errors(static_cast<size_t>(count));
  const bool exact = whole_off == 0;  // all distances are 0 in both implementations
  for (size_t j = 0; !exact && j < logits.size(); ++j) {
    const double twice_variance = 2 * whole / others;
    if (whole > 0) logits[j] = -distances[j] / twice_variance;
    logit_errors[j] = whole_off < whole / 2 ? (off[j] + distances[j] * whole_off / (whole - whole_off)) /
                                                      twice_variance / (1 - whole_off / whole) +
                                                  gamma(4, arithmetic) * std::abs(logits[j])
                                            : kInfinity;
  }
  return by_keys(logits, logit_errors, members, errors, directions, arithmetic);
}

double score_ema_error(int64_t updates, double ema, double largest_score, const Arithmetic& arithmetic) {
  const double u = unit(arithmetic), e = exponential(arithmetic);
  const double each = 8 * u + 4 * e + 2 * u * largest_score;
  return (static_cast<double>(updates) * each + 4 * u / (1 - ema) + 3 * e * (1 + largest_score) +
          4 * u * largest_score) *
         (1 + kOwnRounding);
}

}  // namespace kvbound::reference
