#include "perturbation_errors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/vectors.hpp>
#include <kvbound/reference/perturbation.hpp>

namespace kvbound::reference {
namespace {

// Stands for "no bound", but is finite.
constexpr double kUnbounded = 1e200;
constexpr double kReferenceUnit = std::numeric_limits<double>::epsilon() / 2;

// The combined rounding errors of another implementation's arithmetic and of the reference's.
class Roundings {
 public:
  explicit Roundings(const Arithmetic& arithmetic) : unit_(arithmetic.unit + kReferenceUnit) {}

  double unit() const { return unit_; }
  // gamma_k = k u / (1 - k u): the relative error of k successive roundings.
  double gamma(int64_t count) const {
    const double ku = static_cast<double>(count) * unit_;
    return ku < 1 ? ku / (1 - ku) : kInfinity;
  }

 private:
  double unit_;
};

// A number and a bound on its error.
struct Uncertain {
  double value = 0;
  double error = 0;

  double reach() const { return value + error; }
};

// 0 * infinity is 0 here: a term that is exactly 0 has no error.
double product(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

Uncertain sum(VectorView numbers, VectorView errors, std::span<const int64_t> entries,
              const Roundings& roundings) {
  Uncertain result;
  for (const int64_t i : entries) {
    result.value += numbers[i];
    result.error += errors[i];
  }
  result.error += product(roundings.gamma(std::ssize(entries)), result.reach());
  return result;
}

// sum_i a_i N_i over some entries.
Uncertain weighted_sum(VectorView weights, VectorView weight_errors, VectorView norms, VectorView norm_errors,
                       std::span<const int64_t> entries, const Roundings& roundings) {
  Uncertain result;
  for (const int64_t entry : entries) {
    const int64_t i = entry;
    result.value += weights[i] * norms[i];
    result.error +=
        product(weight_errors[i], norms[i] + norm_errors[i]) + product(weights[i], norm_errors[i]);
  }
  result.error += product(roundings.gamma(std::ssize(entries) + 2), result.reach());
  return result;
}

std::vector<int64_t> others(int64_t tokens, std::span<const int64_t> kept) {
  std::vector<int64_t> result;
  auto next = kept.begin();
  for (int64_t i = 0; i < tokens; ++i) {
    if (next != kept.end() && *next == i) {
      ++next;
    } else {
      result.push_back(i);
    }
  }
  return result;
}

// The sums from which one query head's results are computed.
struct HeadMasses {
  VectorView weights, weight_errors, norms, norm_errors;  // [tokens]
  std::span<const int64_t> kept, evicted;
  Uncertain kept_mass, evicted_mass;
  std::vector<double> shares;        // [kept]: A' = A / Sigma
  std::vector<double> share_errors;  // [kept]
};

// Sets A', a quotient of A and Sigma, and its errors. direct_errors [kept]: the errors of A' as a softmax of
// the kept logits; empty: that form is not covered.
void set_shares(HeadMasses& head, VectorView direct_errors, const Roundings& roundings) {
  const double least = head.kept_mass.value - head.kept_mass.error;
  for (size_t i = 0; i < head.kept.size(); ++i) {
    const int64_t entry = head.kept[i];
    const double share = head.kept_mass.value > 0 ? head.weights[entry] / head.kept_mass.value : 0;
    double error = 1;  // both are in 0..1
    if (least > 0) {
      error = std::min(error, (head.weight_errors[entry] + share * head.kept_mass.error) / least +
                                  2 * roundings.unit() * share);
    }
    if (!direct_errors.empty()) error = std::max(error, direct_errors[i]);
    head.shares.push_back(share);
    head.share_errors.push_back(error);
  }
}

// sum_K A' N. The distance of two convex combinations of the same nonnegative numbers is at
// most the largest of them.
Uncertain kept_mean_norm(const HeadMasses& head, const Roundings& roundings) {
  std::vector<double> norms, errors;
  std::vector<int64_t> all;
  for (const int64_t entry : head.kept) {
    all.push_back(std::ssize(all));
    norms.push_back(head.norms[entry]);
    errors.push_back(head.norm_errors[entry]);
  }
  Uncertain result = weighted_sum(head.shares, head.share_errors, norms, errors, all, roundings);
  const double most = max_abs(norms) + max_abs(errors);
  result.error = std::min(result.error, (1 + roundings.gamma(std::ssize(all) + 4)) * most);
  return result;
}

// theta = S_evicted + e sum_K A' N.
double stable_bound_error(const HeadMasses& head, const Roundings& roundings) {
  const Uncertain evicted =
      weighted_sum(head.weights, head.weight_errors, head.norms, head.norm_errors, head.evicted, roundings);
  const Uncertain mean = kept_mean_norm(head, roundings);
  const double products =
      product(head.evicted_mass.error, mean.reach()) + product(head.evicted_mass.value, mean.error);
  const double reach = evicted.reach() + product(head.evicted_mass.reach(), mean.reach());
  return evicted.error + products + 3 * roundings.unit() * reach;
}

// theta = C - (2 - 1/Sigma) S; no bound where Sigma may be 0.
double printed_bound_error(const HeadMasses& head, const Roundings& roundings) {
  const double least = head.kept_mass.value - head.kept_mass.error;
  if (!(least > 0)) return kUnbounded;
  const Uncertain all = weighted_sum(head.weights, head.weight_errors, head.norms, head.norm_errors,
                                     others(std::ssize(head.weights), {}), roundings);
  const Uncertain kept =
      weighted_sum(head.weights, head.weight_errors, head.norms, head.norm_errors, head.kept, roundings);
  const double inverse = 1 / head.kept_mass.value;
  const double inverse_error = head.kept_mass.error * inverse / least + 2 * roundings.unit() / least;
  const double factor = std::abs(2 - inverse) + inverse_error;
  const double reach = all.reach() + (2 + inverse + inverse_error) * kept.reach();
  return all.error + factor * kept.error + product(inverse_error, kept.value) + 3 * roundings.unit() * reach;
}

double bound_error(const HeadMasses& head, const Roundings& roundings) {
  const double either = std::max(stable_bound_error(head, roundings), printed_bound_error(head, roundings));
  return either < kUnbounded ? either : kUnbounded;
}

// The attention of all query heads over the given keys, and its errors.
struct Attention {
  Attention(MatrixView queries, MatrixView keys, MatrixView values, double scale,
            const Arithmetic& arithmetic)
      : weights(attention_weights(queries, keys, scale, keys.rows - 1)),
        weight_errors(attention_weight_errors(queries, keys, scale, arithmetic)),
        outputs(attention(queries, keys, values, scale)),
        errors(attention_errors(queries, keys, values, scale, {}, arithmetic)) {}

  Matrix weights, weight_errors;  // [heads, keys]
  AttentionOutput outputs;
  AttentionErrors errors;
};

class CaseErrors {
 public:
  CaseErrors(const PerturbationCase& given, const Arithmetic& arithmetic)
      : given_(given),
        arithmetic_(arithmetic),
        roundings_(arithmetic),
        evicted_(others(given.keys.rows, given.kept)),
        full_(given.queries, given.keys, given.values, given.scale, arithmetic),
        compressed_(given.queries, given.kept_keys, given.kept_values, given.scale, arithmetic) {}

  PerturbationErrors head(int64_t h) const {
    HeadMasses masses{full_.weights.row(h),
                      full_.weight_errors.row(h),
                      given_.norms.row(h),
                      given_.norm_errors.row(h),
                      given_.kept,
                      evicted_,
                      kept_mass(h),
                      {},
                      {},
                      {}};
    masses.evicted_mass = sum(masses.weights, masses.weight_errors, evicted_, roundings_);
    // An implementation may form it as 1 - Sigma, with the error of the kept mass.
    masses.evicted_mass.error =
        std::max(masses.evicted_mass.error, masses.kept_mass.error + roundings_.unit());
    set_shares(masses, compressed_.weight_errors.row(h), roundings_);
    PerturbationErrors result;
    result.kept_mass = masses.kept_mass.error;
    result.bound = bound_error(masses, roundings_) + underflow(h);
    const Uncertain two_outputs = separate_outputs(h, masses), one_vector = signed_weights(h, masses);
    result.perturbation = std::max(two_outputs.error, one_vector.error) + underflow(h) + input_floor(h);
    result.terms = std::max(two_outputs.value, one_vector.value);
    return result;
  }

 private:
  int64_t tokens() const { return given_.keys.rows; }
  int64_t product_length() const { return given_.keys.cols + given_.model_dim + 4; }

  // The kept mass as a sum of weights, or from two log-sum-exps.
  Uncertain kept_mass(int64_t h) const {
    const int64_t index = h;
    Uncertain mass = sum(full_.weights.row(h), full_.weight_errors.row(h), given_.kept, roundings_);
    const double logarithms =
        std::abs(full_.outputs.log_sum_exp[index]) + std::abs(compressed_.outputs.log_sum_exp[index]);
    const double exponent = full_.errors.log_sum_exp[index] + compressed_.errors.log_sum_exp[index] +
                            roundings_.unit() * logarithms + arithmetic_.exponential + kReferenceUnit;
    mass.error = std::max(mass.error, product(mass.value, std::expm1(exponent)));
    mass.error += arithmetic_.smallest * static_cast<double>(given_.kept.size() + 1);
    return mass;
  }

  // L = || o W - o^ W ||: value is the sum of absolute terms.
  Uncertain separate_outputs(int64_t h, const HeadMasses& head) const {
    double propagated = 0, terms = 0;
    for (int64_t i = 0; i < tokens(); ++i) {
      const int64_t entry = i;
      propagated += product(head.weight_errors[entry], norm(head, i));
      terms += (head.weights[entry] + head.weight_errors[entry]) * absolute_projection(h, i);
    }
    for (size_t i = 0; i < head.kept.size(); ++i) {  // as a softmax over the kept entries, or as a quotient
      propagated += product(head.share_errors[i], norm(head, head.kept[i]));
      terms += (head.shares[i] + head.share_errors[i]) * absolute_projection(h, head.kept[i]);
    }
    const double common = signed_weights(h, head).value;  // both outputs take the same rounded numbers
    // Roundings per term: the sum over tokens, rescalings of partial
    // sums, and storing, projecting, subtracting and adding up.
    const int64_t roundings = tokens() + (tokens() + 15) / 16 + product_length();
    return {terms, propagated + (arithmetic_.weights + arithmetic_.partials) * terms + input() * common +
                       product(roundings_.gamma(roundings), (1 + input()) * terms)};
  }

  // L = || sum_i w_i v_i W ||: value is the sum of absolute terms.
  Uncertain signed_weights(int64_t h, const HeadMasses& head) const {
    double terms = 0, propagated = 0;
    for (const int64_t i : evicted_) {
      const double error = head.weight_errors[i];
      propagated += product(error, norm(head, i));
      terms += (head.weights[i] + error) * absolute_projection(h, i);
    }
    double share_part = 0, share_terms = 0, kept_norms = 0, kept_terms = 0, longest = 0, largest_terms = 0;
    for (size_t i = 0; i < head.kept.size(); ++i) {
      const double projection = absolute_projection(h, head.kept[i]), length = norm(head, head.kept[i]);
      share_part += product(head.share_errors[i], length);
      share_terms += product(head.share_errors[i], projection);
      kept_norms += head.shares[i] * length;
      kept_terms += head.shares[i] * projection;
      longest = std::max(longest, length);
      largest_terms = std::max(largest_terms, projection);
    }
    // Two convex combinations of the same vectors are at most twice the longest apart.
    share_part = std::min(share_part, 2 * longest);
    share_terms = std::min(share_terms, 2 * largest_terms);
    propagated +=
        product(head.evicted_mass.error, kept_norms) + product(head.evicted_mass.reach(), share_part);
    terms += product(head.evicted_mass.reach(), kept_terms + share_terms);
    const double relative = arithmetic_.weights + arithmetic_.partials + 3 * roundings_.unit() + input();
    return {terms, propagated + relative * terms +
                       product(roundings_.gamma(tokens() + product_length()), (1 + input()) * terms)};
  }

  // The relative error of a value's product with W^O, both of which were rounded when they were stored.
  double input() const { return 2 * arithmetic_.input + arithmetic_.input * arithmetic_.input; }

  // An upper bound of the tested implementation's ||v_i W||_1.
  static double norm(const HeadMasses& head, int64_t i) { return head.norms[i] + head.norm_errors[i]; }

  // sum_c |values[i,c]| ||W_h[c,:]||_1
  double absolute_projection(int64_t h, int64_t i) const {
    double total = 0;
    for (int64_t c = 0; c < given_.values.cols; ++c) {
      total += std::abs(given_.values(i, c)) * given_.projection_norms(h, c);
    }
    return total;
  }

  // The error from products of a weight, a value and an entry of W^O that underflow.
  double underflow(int64_t h) const {
    double projection = 0;
    for (const double row_norm : given_.projection_norms.row(h)) projection += row_norm;
    const auto cells = static_cast<double>(given_.keys.cols) * static_cast<double>(given_.model_dim);
    return arithmetic_.smallest * (static_cast<double>(tokens()) * (1 + projection) + 2 * cells);
  }

  // The error of L from absolute errors of stored values and of W^O, doubled to cover products of errors.
  double input_floor(int64_t h) const {
    double projection = 0, outputs = 0;
    for (int64_t c = 0; c < given_.keys.cols; ++c) {
      projection += given_.projection_norms(h, c);
      outputs += std::abs(full_.outputs.output(h, c)) + std::abs(compressed_.outputs.output(h, c));
    }
    const double floor = arithmetic_.input_floor;
    outputs += static_cast<double>(given_.keys.cols) * floor;
    return 2 * floor * (2 * projection + static_cast<double>(given_.model_dim) * outputs);
  }

  const PerturbationCase& given_;
  const Arithmetic& arithmetic_;
  Roundings roundings_;
  std::vector<int64_t> evicted_;
  Attention full_, compressed_;
};

}  // namespace

std::vector<PerturbationErrors> perturbation_errors(const PerturbationCase& given,
                                                    const Arithmetic& arithmetic) {
  require_equal("kept keys", given.kept_keys.rows, "kept entries", std::ssize(given.kept));
  require_equal("columns of norms", given.norms.cols, "rows of keys", given.keys.rows);
  const CaseErrors errors(given, arithmetic);
  std::vector<PerturbationErrors> result;
  for (int64_t h = 0; h < given.queries.rows; ++h) result.push_back(errors.head(h));
  return result;
}

double total_bound_error(MatrixView weights, MatrixView weight_errors, MatrixView norms,
                         MatrixView norm_errors, std::span<const int64_t> kept,
                         const Arithmetic& arithmetic) {
  const Roundings roundings(arithmetic);
  const std::vector<int64_t> evicted = others(weights.cols, kept);
  double total = 0, reach = 0;
  for (int64_t h = 0; h < weights.rows; ++h) {
    HeadMasses head{weights.row(h),
                    weight_errors.row(h),
                    norms.row(h),
                    norm_errors.row(h),
                    kept,
                    evicted,
                    {},
                    {},
                    {},
                    {}};
    head.kept_mass = sum(head.weights, head.weight_errors, kept, roundings);
    head.evicted_mass = sum(head.weights, head.weight_errors, evicted, roundings);
    head.evicted_mass.error = std::max(head.evicted_mass.error, head.kept_mass.error + roundings.unit());
    if (!(head.kept_mass.value > head.kept_mass.error)) return kInfinity;
    set_shares(head, {}, roundings);
    total += bound_error(head, roundings);
    reach += weighted_sum(head.weights, head.weight_errors, head.norms, head.norm_errors, evicted, roundings)
                 .reach() +
             product(head.evicted_mass.reach(), kept_mean_norm(head, roundings).reach());
  }
  return total + product(roundings.gamma(weights.rows), reach);
}

double sum_rounding(int64_t count, const Arithmetic& arithmetic) {
  return Roundings(arithmetic).gamma(count);
}

Matrix projection_row_norms(MatrixView output_projection, int64_t head_dim) {
  Matrix norms(output_projection.rows / head_dim, head_dim);
  for (int64_t row = 0; row < output_projection.rows; ++row) {
    for (const double entry : output_projection.row(row))
      norms(row / head_dim, row % head_dim) += std::abs(entry);
  }
  return norms;
}

Matrix attention_weight_errors(MatrixView queries, MatrixView keys, double scale,
                               const Arithmetic& arithmetic) {
  // The mean over a window of one query is that query's weights.
  LayerView layer;
  layer.shape = {queries.rows, 1, queries.cols, 1};
  layer.scale = scale;
  layer.keys = {keys.data, 1, keys.rows, keys.cols, 0};
  layer.queries = {queries.data, queries.rows, 1, queries.cols, queries.row_stride};
  Matrix errors = window_attention_errors(layer, 1, arithmetic);
  for (int64_t h = 0; h < errors.rows(); ++h) {
    for (double& error : errors.row(h)) error = std::min(error, 1.0);  // both are in 0..1
  }
  return errors;
}

}  // namespace kvbound::reference
