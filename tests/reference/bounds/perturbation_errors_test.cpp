// The bounds on kept mass, theta and L against single precision, in every form of evaluation that they cover.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "support/session_cases.hpp"

namespace kvbound::reference::perturbation_errors_test {
namespace {

const auto* const kOneThread = testing::AddGlobalTestEnvironment(new test::OneThread);

using test::Positions;
using test::Random;

// One KV head with its query heads, whose numbers single precision holds exactly.
struct Instance {
  Instance(uint64_t seed, int64_t tokens, int64_t kept_count, double key_size) {
    Random random(seed);
    const int64_t head_dim = 8, model_dim = 12, heads = 2;
    queries = rounded(random.matrix(heads, head_dim));
    keys = rounded(random.matrix(tokens, head_dim, key_size));
    values = rounded(random.matrix(tokens, head_dim));
    projection = rounded(random.matrix(heads * head_dim, model_dim, 0.3));
    kept = random.subset(tokens - 1, kept_count - 1);
    kept.push_back(tokens - 1);
    kept_keys = test::rows_at(keys, kept);
    kept_values = test::rows_at(values, kept);
    norms = Matrix(heads, tokens);
    for (int64_t h = 0; h < heads; ++h) {
      const std::vector<double> row = projected_value_norms(values, head_projection(h), Norm::l1);
      std::ranges::copy(row, norms.row(h).begin());
    }
    row_norms = projection_row_norms(projection, head_dim);
  }

  MatrixView head_projection(int64_t h) const { return projection.view().middle_rows(h * 8, 8); }

  std::vector<PerturbationErrors> errors(const Arithmetic& arithmetic) {
    norm_errors =
        projected_value_norm_errors({2, 1, 8, 12}, TensorView{values.data(), 1, values.rows(), 8, 0},
                                    projection, Norm::l1, norms, arithmetic);
    return perturbation_errors(
        {queries, keys, values, scale, kept, kept_keys, kept_values, norms, norm_errors, row_norms, 12},
        arithmetic);
  }

  static Matrix rounded(Matrix matrix) {
    for (int64_t i = 0; i < matrix.rows(); ++i) {
      for (double& x : matrix.row(i)) x = static_cast<float>(x);
    }
    return matrix;
  }

  double scale = 0.375;
  Matrix queries, keys, values, projection, kept_keys, kept_values, norms, norm_errors, row_norms;
  Positions kept;
};

// Kept mass, theta and L of one query head in one floating-point type; sums are added from first to last.
template <class Real>
struct Figures {
  Figures(const Instance& instance, int64_t h) {
    const int64_t tokens = instance.keys.rows(), head_dim = instance.keys.cols();
    std::vector<bool> is_kept(tokens);
    for (const int64_t i : instance.kept) is_kept[i] = true;
    const std::vector<Real> all = softmax(instance, h, std::vector<bool>(is_kept.size(), true));
    const std::vector<Real> some = softmax(instance, h, is_kept);
    Real evicted = 0, all_norms = 0, kept_norms = 0, stable = 0;
    std::vector<Real> signed_weights(all.size()), norms(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      norms[i] = norm(instance, h, static_cast<int64_t>(i));
      (is_kept[i] ? kept_mass : evicted) += all[i];
      all_norms += all[i] * norms[i];
      if (is_kept[i]) kept_norms += all[i] * norms[i];
    }
    for (size_t i = 0; i < all.size(); ++i) {
      signed_weights[i] = is_kept[i] ? -evicted * some[i] : all[i];
      stable += std::abs(signed_weights[i]) * norms[i];
    }
    bounds = {stable, all_norms - (2 - 1 / kept_mass) * kept_norms};
    std::vector<Real> full(head_dim), compressed = full, change = full;
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t c = 0; c < full.size(); ++c) {
        const Real value = real(instance.values(i, c));
        full[c] += all[i] * value;
        compressed[c] += some[i] * value;
        change[c] += signed_weights[i] * value;
      }
    }
    const std::vector<Real> one = projected(instance, h, full), other = projected(instance, h, compressed),
                            difference = projected(instance, h, change);
    Real late = 0, stable_change = 0;
    for (size_t j = 0; j < one.size(); ++j) {
      late += std::abs(one[j] - other[j]);
      stable_change += std::abs(difference[j]);
    }
    perturbations = {late, stable_change};
  }

  static Real real(double x) { return static_cast<Real>(x); }

  // The softmax over the tokens for which `there` holds; 0 for the others.
  static std::vector<Real> softmax(const Instance& instance, int64_t h, const std::vector<bool>& there) {
    std::vector<Real> weights(there.size());
    Real most = -std::numeric_limits<Real>::infinity(), sum = 0;
    for (size_t i = 0; i < there.size(); ++i) {
      for (int64_t c = 0; c < instance.keys.cols(); ++c) {
        weights[i] += real(instance.queries(h, c)) * real(instance.keys(i, c));
      }
      weights[i] *= real(instance.scale);
      if (there[i]) most = std::max(most, weights[i]);
    }
    for (size_t i = 0; i < there.size(); ++i) sum += weights[i] = there[i] ? std::exp(weights[i] - most) : 0;
    for (Real& weight : weights) weight /= sum;
    return weights;
  }

  static std::vector<Real> projected(const Instance& instance, int64_t h, const std::vector<Real>& row) {
    const MatrixView projection = instance.head_projection(h);
    std::vector<Real> result(projection.cols);
    for (int64_t c = 0; c < projection.rows; ++c) {
      for (int64_t j = 0; j < projection.cols; ++j) {
        result[j] += row[c] * real(projection(c, j));
      }
    }
    return result;
  }

  static Real norm(const Instance& instance, int64_t h, int64_t token) {
    std::vector<Real> value;
    for (const double x : instance.values.row(token)) value.push_back(real(x));
    Real sum = 0;
    for (const Real x : projected(instance, h, value)) sum += std::abs(x);
    return sum;
  }

  Real kept_mass = 0;
  std::vector<Real> bounds, perturbations;
};

struct Case {
  int64_t tokens, kept;
  double key_size;
};
// One entry kept of many, half, all but one, and all; flat, uneven, and nearly one-hot attention.
constexpr Case kCases[] = {{40, 1, 1},   {40, 20, 1},   {40, 39, 1},  {40, 40, 1}, {300, 30, 0.1},
                           {300, 30, 5}, {300, 299, 5}, {60, 30, 30}, {200, 2, 8}};

TEST(PerturbationErrors, HoldForEveryFormInSinglePrecision) {
  for (const Case& size : kCases) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      Instance instance(seed, size.tokens, size.kept, size.key_size);
      const std::vector<PerturbationErrors> errors = instance.errors(single_precision());
      for (int64_t h = 0; h < 2; ++h) {
        const Figures<float> single(instance, h);
        const Figures<long double> exact(instance, h);
        const PerturbationErrors& allowed = errors[h];
        const auto off = [](float a, long double b) { return static_cast<double>(std::abs(a - b)); };
        EXPECT_LE(off(single.kept_mass, exact.kept_mass), allowed.kept_mass);
        EXPECT_LE(off(single.bounds[0], exact.bounds[0]), allowed.bound);
        EXPECT_LE(off(single.perturbations[0], exact.perturbations[1]), allowed.perturbation);
        EXPECT_LE(off(single.perturbations[1], exact.perturbations[1]), allowed.perturbation);
        // Where the kept mass is smaller than about its error, the printed form proves nothing.
        if (static_cast<double>(exact.kept_mass) > 2 * allowed.kept_mass) {
          EXPECT_LE(off(single.bounds[1], exact.bounds[0]), allowed.bound)
              << size.tokens << " " << size.kept << " " << size.key_size << " seed " << seed;
        }
      }
    }
  }
}

TEST(PerturbationErrors, OfDoublePrecisionHoldForTheReference) {
  for (const Case& size : kCases) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Instance instance(seed, size.tokens, size.kept, size.key_size);
      const std::vector<PerturbationErrors> errors = instance.errors(double_precision());
      for (int64_t h = 0; h < 2; ++h) {
        const Figures<long double> exact(instance, h);
        const Matrix logits = attention_logits(instance.queries, instance.keys, instance.scale);
        Matrix weights = logits;
        causal_softmax(weights.view(), instance.keys.rows());
        const EvictionWeights eviction = eviction_weights(logits.row(h), weights.row(h), instance.kept);
        const PerturbationErrors& allowed = errors[h];
        const auto off = [](double a, long double b) { return static_cast<double>(std::abs(a - b)); };
        EXPECT_LE(off(eviction.kept_mass, exact.kept_mass), allowed.kept_mass);
        EXPECT_LE(off(perturbation_bound(eviction, instance.norms.row(h)), exact.bounds[0]), allowed.bound);
        EXPECT_LE(off(output_perturbation(eviction, instance.values, instance.head_projection(h)),
                      exact.perturbations[1]),
                  allowed.perturbation);
      }
    }
  }
}

TEST(PerturbationErrors, AreSmallBesideWhatTheyBound) {
  for (const Case& size : {Case{40, 20, 1}, Case{300, 30, 0.1}, Case{300, 150, 1}}) {
    Instance instance(3, size.tokens, size.kept, size.key_size);
    const std::vector<PerturbationErrors> errors = instance.errors(single_precision());
    for (int64_t h = 0; h < 2; ++h) {
      const Figures<long double> exact(instance, h);
      const PerturbationErrors& allowed = errors[h];
      EXPECT_LT(allowed.kept_mass, 1e-3 * static_cast<double>(exact.kept_mass));
      EXPECT_LT(allowed.bound, 1e-3 * static_cast<double>(exact.bounds[0]));
      EXPECT_LT(allowed.perturbation, 1e-2 * static_cast<double>(exact.perturbations[1]));
      EXPECT_GT(allowed.kept_mass, 0);
    }
  }
}

TEST(PerturbationErrors, GrowWithWhatIsRounded) {
  Instance instance(5, 100, 30, 1);
  const auto bound_of = [&](const std::function<void(Arithmetic&)>& change) {
    Arithmetic arithmetic = single_precision();
    change(arithmetic);
    return instance.errors(arithmetic).front();
  };
  const PerturbationErrors plain = bound_of([](Arithmetic&) {});
  for (const PerturbationErrors& wider : {bound_of([](Arithmetic& a) { a.input = 0x1p-8; }),
                                          bound_of([](Arithmetic& a) { a.weights = 0x1p-8; }),
                                          bound_of([](Arithmetic& a) { a.input_floor = 0x1p-10; }),
                                          bound_of([](Arithmetic& a) { a.unit *= 4; })}) {
    EXPECT_GT(wider.perturbation, 1.5 * plain.perturbation);
  }
}

TEST(TotalBoundError, HoldsForWeightsAndNormsWithinTheirErrors) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    const int64_t tokens = 30, heads = 2;
    Matrix weights(heads, tokens), norms(heads, tokens), weight_errors(heads, tokens),
        norm_errors(heads, tokens);
    Matrix other_weights(heads, tokens), other_norms(heads, tokens);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < tokens; ++i) {
        weights(h, i) = random.uniform(0, 2.0 / tokens);
        norms(h, i) = random.uniform(0, 3);
        weight_errors(h, i) = 1e-4 * random.uniform(0, 1) * weights(h, i);
        norm_errors(h, i) = 1e-4 * random.uniform(0, 1);
        other_weights(h, i) = weights(h, i) + random.uniform(-1, 1) * weight_errors(h, i);
        other_norms(h, i) = std::max(0.0, norms(h, i) + random.uniform(-1, 1) * norm_errors(h, i));
      }
    }
    const Positions kept = random.subset(tokens, 1 + random.index(tokens));
    const auto total = [&](const Matrix& a, const Matrix& n) {
      double sum = 0;
      for (int64_t h = 0; h < heads; ++h)
        sum += perturbation_bound(eviction_weights(a.row(h), kept), n.row(h));
      return sum;
    };
    const double allowed =
        total_bound_error(weights, weight_errors, norms, norm_errors, kept, double_precision());
    EXPECT_LE(std::abs(total(other_weights, other_norms) - total(weights, norms)), allowed);
    EXPECT_LT(allowed, 0.1 * total(weights, norms) + 0.1);
  }
}

TEST(AttentionWeightErrors, AreOfEveryHeadAndAtMostOne) {
  Instance instance(9, 20, 5, 1);
  const Matrix errors = attention_weight_errors(instance.queries, instance.keys, 1, single_precision());
  EXPECT_EQ(errors.rows(), 2);
  EXPECT_EQ(errors.cols(), 20);
  const Matrix huge = attention_weight_errors(instance.queries, instance.keys, 1e9, single_precision());
  for (const double error : huge.numbers()) EXPECT_LE(error, 1);
}

TEST(ProjectionRowNorms, AddUpAbsoluteValuesPerHead) {
  const Matrix norms = projection_row_norms(test::matrix({{1, -2}, {3, 0}, {-1, -1}, {0, 0}}), 2);
  EXPECT_EQ(norms.rows(), 2);
  EXPECT_EQ(std::vector<double>(norms.numbers().begin(), norms.numbers().end()),
            (std::vector<double>{3, 3, 2, 0}));
}

}  // namespace
}  // namespace kvbound::reference::perturbation_errors_test
