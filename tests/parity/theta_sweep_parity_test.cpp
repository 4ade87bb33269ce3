// The steps of theta-sweep on the device: scores within their rounding, bounds within total_bound_error, and
// always the selection of the smaller bound.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/theta_sweep.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "scores.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

using Positions = std::vector<int64_t>;

struct Case {
  int64_t kv_heads = 2;
  int64_t group_size = 2;
  int64_t tokens = 40;
  int64_t first_candidate = 3;
  int64_t candidates = 30;
  ScoreKind norms = ScoreKind::softmax;

  int64_t query_heads() const { return kv_heads * group_size; }
};

// Weights and norms, exact in fp32.
struct Subject {
  Case c;
  Matrix weights, norms;
  cuda::Buffer<float> device_weights, device_norms;

  explicit Subject(const Case& given)
      : c(given), weights(c.query_heads(), c.tokens), norms(c.query_heads(), c.tokens) {
    for (int64_t h = 0; h < c.query_heads(); ++h) {
      const auto seed = static_cast<uint64_t>(2 * h);
      std::ranges::copy(scores_of(ScoreKind::softmax, seed, c.tokens), weights.row(h).begin());
      std::ranges::copy(scores_of(c.norms, seed + 1, c.tokens), norms.row(h).begin());
      if (h == 1) std::ranges::fill(norms.row(h), 0.0);
    }
    device_weights = as_singles(weights);
    device_norms = as_singles(norms);
  }

  cuda::ThetaSweepInput view() const {
    return {device_weights.data(), device_norms.data(), c.query_heads(), c.kv_heads, c.tokens,
            c.first_candidate,     c.candidates};
  }
  MatrixView group(const Matrix& rows, int64_t g) const {
    return rows.view().middle_rows(g * c.group_size, c.group_size);
  }

  static cuda::Buffer<float> as_singles(const Matrix& matrix) {
    return cuda::upload(std::vector<float>(matrix.numbers().begin(), matrix.numbers().end()));
  }
};

class ThetaSweepParity : public DeviceTest {
 protected:
  static std::vector<float> sweep(const Subject& subject, double lambda) {
    Output means(subject.c.query_heads()), scores(subject.c.kv_heads * subject.c.candidates);
    cuda::mean_norms(subject.view(), means.data(), nullptr);
    cuda::sweep_scores(subject.view(), means.data(), lambda, scores.data(), nullptr);
    return scores.numbers();
  }

  void expect_sweep_parity(const Case& c) {
    const Subject subject(c);
    for (const double lambda : {0.0, 1e-3, 1.0, kInfinity}) {
      SCOPED_TRACE(std::to_string(c.tokens) + " tokens, lambda " + std::to_string(lambda));
      const std::vector<float> actual = in_every_schedule([&] { return sweep(subject, lambda); });
      std::vector<double> expected, bounds;
      for (int64_t g = 0; g < c.kv_heads; ++g) {
        for (int64_t j = c.first_candidate; j < c.first_candidate + c.candidates; ++j) {
          double sum = 0;
          for (int64_t h = g * c.group_size; h < (g + 1) * c.group_size; ++h) {
            double mean = 0;
            for (const double norm : subject.norms.row(h)) mean += norm / static_cast<double>(c.tokens);
            const double relative = mean > 0 ? subject.norms(h, j) / mean : 0;
            sum += subject.weights(h, j) * (lambda == kInfinity ? 1 : lambda + relative);
          }
          expected.push_back(sum / static_cast<double>(c.group_size));
          bounds.push_back(reference::sum_rounding(c.tokens / 512 + 40, reference::single_precision()) *
                               expected.back() +
                           0x1p-120);
        }
      }
      EXPECT_TRUE(scores_.hold(actual, expected, bounds));
    }
  }

  struct Best {
    std::vector<float> bounds;
    std::vector<Positions> positions;
  };

  // tried  [selections][kv_heads]
  static Best best_of(const Subject& subject, const std::vector<std::vector<Positions>>& tried) {
    const Case& c = subject.c;
    const int64_t stride = c.candidates + 1;
    cuda::Buffer<float> bounds = cuda::upload(std::vector<float>(c.kv_heads, -1));
    cuda::Buffer<int64_t> best = cuda::upload(Positions(c.kv_heads * stride, -1));
    Positions k;
    for (const Positions& head : tried.front()) k.push_back(std::ssize(head));
    const cuda::Buffer<int64_t> counts = cuda::upload(k);
    for (const std::vector<Positions>& selection : tried) {
      Positions all(c.kv_heads * stride, -1);
      for (int64_t g = 0; g < c.kv_heads; ++g) std::ranges::copy(selection[g], all.begin() + g * stride);
      const cuda::Buffer<int64_t> positions = cuda::upload(all);
      WorkingMemory memory(cuda::keep_better_workspace(c.kv_heads, c.tokens));
      cuda::keep_better(subject.view(), positions.data(), counts.data(), {bounds.data(), best.data(), stride},
                        memory.view(), nullptr);
      cuda::synchronise(nullptr);
    }
    Best result{cuda::download(bounds), {}};
    const Positions all = cuda::download(best);
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      result.positions.emplace_back(all.begin() + g * stride, all.begin() + g * stride + k[g]);
    }
    return result;
  }

  void expect_best_parity(const Case& c, const std::vector<std::vector<Positions>>& tried) {
    const Subject subject(c);
    const Best best = best_of(subject, tried);
    std::vector<double> expected, errors;
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      double least = kInfinity;
      Positions own, kept_by_own;
      for (const std::vector<Positions>& selection : tried) {
        const Positions kept = kept_of(c, selection[g]);
        const double bound = total(subject, g, kept);
        if (bound < least) least = bound, own = selection[g], kept_by_own = kept;
      }
      EXPECT_EQ(best.positions[g], own) << "KV head " << g;
      const Matrix none(c.group_size, c.tokens);
      expected.push_back(least);
      errors.push_back(reference::total_bound_error(subject.group(subject.weights, g), none,
                                                    subject.group(subject.norms, g), none, kept_by_own,
                                                    reference::single_precision()));
    }
    EXPECT_TRUE(bounds_.hold(best.bounds, expected, errors));
  }

  static Positions kept_of(const Case& c, const Positions& selected) {
    Positions kept;
    for (int64_t j = 0; j < c.tokens; ++j) {
      const bool candidate = c.first_candidate <= j && j < c.first_candidate + c.candidates;
      if (!candidate || std::ranges::binary_search(selected, j)) kept.push_back(j);
    }
    return kept;
  }

  static double total(const Subject& subject, int64_t g, const Positions& kept) {
    double sum = 0;
    for (int64_t i = 0; i < subject.c.group_size; ++i) {
      const VectorView weights = subject.group(subject.weights, g).row(i);
      if (!(reference::attention_mass(weights, kept) > 0)) return kInfinity;
      sum += reference::perturbation_bound(reference::eviction_weights(weights, kept),
                                           subject.group(subject.norms, g).row(i));
    }
    return sum;
  }

  // `count` candidates, every `step`-th from `first` on.
  static Positions every(const Case& c, int64_t first, int64_t step, int64_t count) {
    Positions positions;
    for (int64_t i = 0; i < count; ++i) {
      positions.push_back(c.first_candidate + (first + i * step) % c.candidates);
    }
    std::ranges::sort(positions);
    return positions;
  }

  Comparator scores_{"sweep_scores"}, bounds_{"keep_better"};
};

TEST_F(ThetaSweepParity, ScoresMatchTheDefinition) {
  for (const int64_t tokens : {8, 31, 32, 33, 600, 1500}) {
    for (const int64_t group_size : {1, 3}) {
      expect_sweep_parity({.group_size = group_size, .tokens = tokens, .candidates = tokens - 5});
    }
  }
  EXPECT_TRUE(scores_.is_tight());
}

TEST_F(ThetaSweepParity, KeepsTheSelectionOfSmallestBound) {
  for (const int64_t tokens : {12, 33, 100, 1501}) {
    for (const ScoreKind norms : {ScoreKind::softmax, ScoreKind::peaked}) {
      const Case c{.tokens = tokens, .candidates = tokens - 5, .norms = norms};
      std::vector<std::vector<Positions>> tried;
      for (const int64_t first : {0, 2, 1, 3})
        tried.push_back({every(c, first, 1, 4), every(c, first + 1, 1, 6)});
      SCOPED_TRACE(std::to_string(tokens) + " tokens");
      expect_best_parity(c, tried);
    }
  }
  EXPECT_TRUE(bounds_.is_tight());
}

TEST_F(ThetaSweepParity, KeepsTheFirstOfEqualBoundsAlsoWithoutMass) {
  const Case c{.kv_heads = 1, .group_size = 1, .tokens = 4, .first_candidate = 0, .candidates = 4};
  Subject subject(c);
  subject.device_weights = cuda::upload(std::vector<float>{0.5f, 0.5f, 0, 0});
  subject.device_norms = cuda::upload(std::vector<float>{1, 1, 1, 1});
  EXPECT_EQ(best_of(subject, {{{1}}, {{0}}}).positions.front(), Positions{1});
  const Best none = best_of(subject, {{{2}}, {{3}}});
  EXPECT_EQ(none.bounds.front(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(none.positions.front(), Positions{2}) << "no selection keeps any mass";
  const Best last = best_of(subject, {{{2}}, {{3}}, {{0}}});
  EXPECT_EQ(last.bounds.front(), 1.0f);
  EXPECT_EQ(last.positions.front(), Positions{0}) << "the only one that keeps any mass";
  const Best whole = best_of(subject, {{{0, 1, 2}}, {{0, 1, 3}}});
  EXPECT_EQ(whole.bounds.front(), 0);
  EXPECT_EQ(whole.positions.front(), (Positions{0, 1, 2})) << "both keep all mass";
}

TEST_F(ThetaSweepParity, GivesTheSameUnderEverySchedule) {
  const Case c{.tokens = 700, .candidates = 600};
  const Subject subject(c);
  in_every_schedule([&] {
    return best_of(subject,
                   {{every(c, 0, 1, 50), every(c, 1, 1, 50)}, {every(c, 9, 1, 50), every(c, 5, 1, 50)}})
        .bounds;
  });
}

TEST_F(ThetaSweepParity, RefusesShapesThatDoNotFit) {
  EXPECT_THROW(cuda::mean_norms({nullptr, nullptr, 3, 2, 5, 0, 5}, nullptr, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::sweep_scores({nullptr, nullptr, 2, 2, 5, 1, 5}, nullptr, 0, nullptr, nullptr),
               ShapeMismatch);
  EXPECT_THROW(cuda::keep_better({nullptr, nullptr, 2, 2, 5, 0, 5}, nullptr, nullptr, {}, {}, nullptr),
               ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
