// CriticalKV on the device: norms and scores within their error bounds, selections equal to the reference's.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock-matchers.h>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/critical_kv_norms_check.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "scores.hpp"
#include "support.hpp"
#include "support/message_of.hpp"

namespace kvbound::parity {
namespace {

using cuda::NormsKernel;

// A layer's values and W^O, exact in T, for the host and the device.
template <cuda::Storage T>
struct NormsInput {
  LayerShape shape;
  Tensor values;      // [kv_heads, tokens, head_dim]
  Tensor projection;  // [query_heads, head_dim, model_dim]
  Uploaded<T> device_values;
  Uploaded<T> device_projection;

  NormsInput(const LayerShape& layer, Tensor some_values, Tensor some_projection)
      : shape(layer),
        values(rounded<T>(std::move(some_values))),
        projection(rounded<T>(std::move(some_projection))),
        device_values(values),
        device_projection(projection) {}

  int64_t tokens() const { return values.view().rows; }
  MatrixView matrix() const {
    return {projection.data(), shape.query_heads * shape.head_dim, shape.model_dim};
  }
  std::vector<float> norms(NormsKernel kernel) const {
    Output output(shape.query_heads * tokens());
    cuda::projected_value_norms<T>(device_values.view(), device_projection.view(), output.data(), nullptr,
                                   kernel);
    return output.numbers();
  }
  std::vector<float> norms_l2() const {
    Output gram(shape.query_heads * shape.head_dim * shape.head_dim), output(shape.query_heads * tokens());
    cuda::gram_matrices<T>(device_projection.view(), gram.data(), nullptr);
    cuda::projected_value_norms_l2<T>(device_values.view(), device_projection.view(), gram.data(),
                                      output.data(), nullptr);
    return output.numbers();
  }
};

// Tokens of very different norms: the third is large like a sink, the fifth almost 0.
Tensor values_of(const LayerShape& shape, int64_t tokens) {
  Tensor values = random_tensor(11, shape.kv_heads, tokens, shape.head_dim);
  for (int64_t g = 0; g < shape.kv_heads; ++g) {
    const MutableMatrixView rows = values.slice(g);
    for (int64_t c = 0; c < shape.head_dim; ++c) {
      if (tokens > 2) rows(2, c) *= 1000;
      if (tokens > 4) rows(4, c) *= 1e-3;
    }
  }
  return values;
}

template <cuda::Storage T>
NormsInput<T> norms_input(const LayerShape& shape, int64_t tokens) {
  return {
      shape, values_of(shape, tokens),
      random_tensor(12, shape.query_heads, shape.head_dim, shape.model_dim, 1 / std::sqrt(shape.head_dim))};
}

LayerShape layer_shape(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t model_dim) {
  return {query_heads, kv_heads, head_dim, model_dim};
}

// Whether a kernel's requirements are met does not depend on what it computes: see RunsTheFastestKernelThatIsRight.
bool has_wgmma(int64_t head_dim) {
  return (head_dim == 64 || head_dim == 128) && cuda::device().compute_capability == 90;
}

// All kernels that support the shape.
template <cuda::Storage T>
std::vector<NormsKernel> kernels(int64_t head_dim) {
  std::vector<NormsKernel> all{NormsKernel::portable};
  if (sizeof(T) == 2 && head_dim % 16 == 0) all.push_back(NormsKernel::mma);
  if (sizeof(T) == 2 && has_wgmma(head_dim)) all.push_back(NormsKernel::wgmma);
  return all;
}

std::string name_of(NormsKernel kernel) {
  if (kernel == NormsKernel::portable) return "portable";
  return kernel == NormsKernel::mma ? "mma" : "wgmma";
}

reference::Arithmetic norms_arithmetic(const LayerShape& shape, NormsKernel kernel) {
  return reference::arithmetic_of(cuda::norms_arithmetic(shape.head_dim, shape.model_dim, kernel));
}

// Compares the norms of one test with the reference's.
template <cuda::Storage T>
class NormsCheck {
 public:
  void hold(const NormsInput<T>& input, NormsKernel kernel) {
    hold(input, Norm::l1, name_of(kernel), input.norms(kernel), norms_arithmetic(input.shape, kernel));
  }
  void hold_l2(const NormsInput<T>& input) {
    const LayerShape& shape = input.shape;
    const KernelArithmetic arithmetic = cuda::norms_l2_arithmetic<T>(shape.head_dim, shape.model_dim);
    hold(input, Norm::l2, kL2, input.norms_l2(), reference::arithmetic_of(arithmetic));
  }
  // The bounds of squared lengths by tensor cores are wide: each of their chains may err by all that it sums up.
  void expect_tight() {
    for (const auto& [by, comparator] : comparators_)
      EXPECT_TRUE(comparator.is_tight() || (by == kL2 && sizeof(T) == 2));
  }
  void hold_all(const LayerShape& shape, int64_t tokens) {
    SCOPED_TRACE("tokens " + std::to_string(tokens) + ", head_dim " + std::to_string(shape.head_dim) +
                 ", model_dim " + std::to_string(shape.model_dim));
    const NormsInput<T> input = norms_input<T>(shape, tokens);
    for (const NormsKernel kernel : kernels<T>(shape.head_dim)) hold(input, kernel);
    hold_l2(input);
  }

 private:
  void hold(const NormsInput<T>& input, Norm norm, const std::string& by, const std::vector<float>& norms,
            const reference::Arithmetic& arithmetic) {
    SCOPED_TRACE(by);
    const Matrix expected = reference::projected_value_norms(input.shape, input.values, input.matrix(), norm);
    const Matrix bounds = reference::projected_value_norm_errors(input.shape, input.values, input.matrix(),
                                                                 norm, expected, arithmetic);
    const auto [at, _] = comparators_.try_emplace(
        by, "projected_value_norms, " + by + ", " + std::string(name(cuda::dtype_of<T>)));
    EXPECT_TRUE(at->second.hold(norms, expected.numbers(), bounds.numbers()));
  }

  static constexpr const char* kL2 = "L2";
  std::map<std::string, Comparator> comparators_;
};

// Values of which W^O leaves almost nothing, between others: v G v^T is the small difference of large numbers. Every row of W^O is the
// first one plus a little, and these values' numbers add up to almost 0.
template <cuda::Storage T>
NormsInput<T> cancelling_input(int64_t head_dim, int64_t model_dim, int64_t tokens, double of_values = 1,
                               double of_projection = 1) {
  NormsInput<T> plain = norms_input<T>(layer_shape(4, 2, head_dim, model_dim), tokens);
  for (int64_t h = 0; h < 4; ++h) {
    const MutableMatrixView rows = plain.projection.slice(h);
    for (int64_t k = 1; k < head_dim; ++k) {
      for (int64_t m = 0; m < model_dim; ++m) rows(k, m) = rows(0, m) + 0x1p-10 * rows(k, m);
    }
  }
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t j = 0; j < tokens; j += 3) {
      const VectorView row = plain.values.slice(g).row(j);
      double mean = 0;
      for (const double x : row) mean += x / static_cast<double>(head_dim);
      for (int64_t k = 0; k < head_dim; ++k) plain.values.slice(g)(j, k) -= mean;
    }
  }
  for (double& x : plain.values.numbers()) x *= of_values;
  for (double& x : plain.projection.numbers()) x *= of_projection;
  return {plain.shape, std::move(plain.values), std::move(plain.projection)};
}

template <class T>
class ProjectedValueNormsParity : public DeviceTest {};
TYPED_TEST_SUITE(ProjectedValueNormsParity, StorageTypes, StorageName);

TYPED_TEST(ProjectedValueNormsParity, MatchesReferenceAcrossShapes) {
  NormsCheck<TypeParam> check;
  for (const int64_t head_dim : {8, 10, 64, 80, 128, 256}) {
    for (const int64_t tokens : {1, 31, 32, 33}) check.hold_all(layer_shape(2, 1, head_dim, 33), tokens);
    for (const int64_t model_dim : {1, 8, 256}) check.hold_all(layer_shape(4, 2, head_dim, model_dim), 20);
  }
  check.expect_tight();
}

TYPED_TEST(ProjectedValueNormsParity, MatchesReferenceForManyTokensAndColumns) {
  NormsCheck<TypeParam> check;
  const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(4, 2, 128, 1000), 300);
  for (const NormsKernel kernel : kernels<TypeParam>(128)) check.hold(input, kernel);
  check.hold_l2(input);
  check.expect_tight();
}

// Where an L2 norm's square is a small share of what its Gram matrix adds up, the bound is that of projected values.
TYPED_TEST(ProjectedValueNormsParity, ProjectsValuesOfWhichAGramMatrixSaysTooLittle) {
  NormsCheck<TypeParam> check;
  for (const int64_t head_dim : {8, 80, 128}) {
    const NormsInput<TypeParam> input = cancelling_input<TypeParam>(head_dim, 200, 70);
    check.hold_l2(input);
    const std::vector<float> norms = in_every_schedule([&] { return input.norms_l2(); });
    EXPECT_THAT(norms, testing::Each(testing::Gt(0)));
  }
}

// Squares of these numbers, or their sums, are not finite or below the normal range.
TYPED_TEST(ProjectedValueNormsParity, HoldsL2NormsOfExtremeNumbers) {
  NormsCheck<TypeParam> check;
  std::vector<std::pair<double, double>> scales{{1e-4, 1e-4}, {1e3, 1}, {1e-6, 1e3}};
  if (!std::is_same_v<TypeParam, cuda::Float16>) {
    scales = {{1e-23, 1e12}, {1e12, 1e-23}, {1e-5, 1e20}, {1e15, 1e-12}, {1e17, 1}};
    check.hold_l2(cancelling_input<TypeParam>(64, 40, 9, 1e-24, 1e12));
    check.hold_l2(cancelling_input<TypeParam>(64, 40, 9, 1e12, 1e-24));
  }
  for (const auto& [of_values, of_projection] : scales) {
    SCOPED_TRACE(testing::Message() << of_values << " and " << of_projection);
    for (const int64_t head_dim : {1, 64}) {
      check.hold_l2({layer_shape(2, 1, head_dim, 40), random_tensor(3, 1, 9, head_dim, of_values),
                     random_tensor(4, 2, head_dim, 40, of_projection)});
    }
  }
}

// Their squares are held to bounds of their own in value_space_parity_test.cpp.
TYPED_TEST(ProjectedValueNormsParity, TakesRootsOfSquaredLengths) {
  for (const auto& [head_dim, tokens] : {std::pair(10, 70), {64, 1100}, {128, 70}}) {
    const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(4, 2, head_dim, 200), tokens);
    Output gram(4 * head_dim * head_dim), squares(4 * input.tokens());
    cuda::gram_matrices<TypeParam>(input.device_projection.view(), gram.data(), nullptr);
    cuda::squared_norms<TypeParam>(input.device_values.view(), gram.data(), 4, squares.data(), nullptr);
    std::vector<float> roots = squares.numbers();
    for (float& number : roots) number = std::sqrt(number);
    EXPECT_TRUE(same_bits(input.norms_l2(), roots)) << "head_dim " << head_dim;
  }
}

TYPED_TEST(ProjectedValueNormsParity, WritesNothingForNoTokens) {
  const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(4, 2, 64, 40), 0);
  for (const NormsKernel kernel : kernels<TypeParam>(64)) EXPECT_TRUE(input.norms(kernel).empty());
  EXPECT_TRUE(input.norms_l2().empty());
}

TYPED_TEST(ProjectedValueNormsParity, IsExactlyZeroForZeroValues) {
  const LayerShape shape = layer_shape(4, 2, 64, 40);
  const NormsInput<TypeParam> input(shape, Tensor(2, 35, 64), random_tensor(1, 4, 64, 40));
  const std::vector<float> zeros(4 * 35, 0.0f);
  for (const NormsKernel kernel : kernels<TypeParam>(64)) EXPECT_EQ(input.norms(kernel), zeros);
  EXPECT_EQ(input.norms_l2(), zeros);
}

// Otherwise equal tokens would not tie in selections.
TYPED_TEST(ProjectedValueNormsParity, GivesEqualValuesEqualBitsWhereverTheyStand) {
  const int64_t tokens = 333;
  const LayerShape shape = layer_shape(2, 2, 80, 100);
  const Tensor one = random_tensor(2, 1, 1, 80);
  Tensor values(2, tokens, 80);
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t j = 0; j < tokens; ++j) std::ranges::copy(one.numbers(), values.slice(g).row(j).begin());
  }
  const Tensor block = random_tensor(3, 1, 80, 100);
  Tensor projection(2, 80, 100);
  for (int64_t h = 0; h < 2; ++h) {
    std::ranges::copy(block.numbers(), projection.numbers().begin() + h * 80 * 100);
  }
  const NormsInput<TypeParam> input(shape, values, projection);
  const auto expect_equal = [](const std::vector<float>& norms) {
    EXPECT_TRUE(same_bits(norms, std::vector<float>(norms.size(), norms.front())));
  };
  for (const NormsKernel kernel : kernels<TypeParam>(80)) expect_equal(input.norms(kernel));
  expect_equal(input.norms_l2());
}

// The number of tokens decides whether a block takes one query head of a group or all of them: the bits must not
// change.
TYPED_TEST(ProjectedValueNormsParity, DoesNotDependOnHowManyTokensThereAre) {
  const int64_t tokens = 128 * cuda::device().multiprocessors;  // a block takes at most 128 tokens
  const LayerShape shape = layer_shape(2, 1, 16, 3);
  const NormsInput<TypeParam> input = norms_input<TypeParam>(shape, tokens);
  Tensor first(1, 5, 16);
  std::copy_n(input.values.numbers().begin(), 5 * 16, first.numbers().begin());
  const NormsInput<TypeParam> few(shape, first, input.projection);
  const auto expect_same = [&](const std::vector<float>& norms, const std::vector<float>& first_norms) {
    for (const int64_t head : {0, 1}) {
      const auto begin = norms.begin() + head * tokens;
      EXPECT_TRUE(
          same_bits(std::vector<float>(begin, begin + 5),
                    std::vector<float>(first_norms.begin() + head * 5, first_norms.begin() + head * 5 + 5)));
    }
  };
  for (const NormsKernel kernel : kernels<TypeParam>(16)) expect_same(input.norms(kernel), few.norms(kernel));
  expect_same(input.norms_l2(), few.norms_l2());
}

TYPED_TEST(ProjectedValueNormsParity, GivesTheSameBitsUnderEverySchedule) {
  for (const int64_t head_dim : {10, 64, 80}) {
    const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(4, 2, head_dim, 200), 40);
    const auto expect = [](const std::vector<float>& norms) {
      EXPECT_TRUE(std::ranges::all_of(norms, [](float norm) { return norm > 0; })) << "NaN is the same, too";
    };
    for (const NormsKernel kernel : kernels<TypeParam>(head_dim))
      expect(in_every_schedule([&] { return input.norms(kernel); }));
    expect(in_every_schedule([&] { return input.norms_l2(); }));
  }
}

TYPED_TEST(ProjectedValueNormsParity, RefusesShapesThatDoNotFitInL2) {
  using T = TypeParam;
  const auto refuses = [](const LayerShape& values, const LayerShape& projection) {
    const Uploaded<T> v{Tensor(values.kv_heads, 3, values.head_dim)};
    const Uploaded<T> w{Tensor(projection.query_heads, projection.head_dim, projection.model_dim)};
    EXPECT_THROW(cuda::projected_value_norms_l2<T>(v.view(), w.view(), nullptr, nullptr, nullptr),
                 ShapeMismatch);
    EXPECT_THROW(cuda::norms_of_squares<T>(v.view(), w.view(), nullptr, nullptr, nullptr), ShapeMismatch);
  };
  const LayerShape shape = layer_shape(4, 2, 10, 5), wide = layer_shape(4, 2, 257, 5);
  refuses(shape, layer_shape(3, 2, 10, 5));
  refuses(wide, wide);
  const Uploaded<T> v{Tensor(2, 3, 10)}, w{Tensor(4, 9, 5)};
  EXPECT_THROW(cuda::norms_of_squares<T>(v.view(), w.view(), nullptr, nullptr, nullptr), ShapeMismatch);
}

TYPED_TEST(ProjectedValueNormsParity, RefusesWhatDoesNotFit) {
  using T = TypeParam;
  const auto norms = [](const LayerShape& values, const LayerShape& projection, NormsKernel kernel) {
    const Uploaded<T> v{Tensor(values.kv_heads, 3, values.head_dim)};
    const Uploaded<T> w{Tensor(projection.query_heads, projection.head_dim, projection.model_dim)};
    cuda::projected_value_norms<T>(v.view(), w.view(), nullptr, nullptr, kernel);
  };
  const LayerShape shape = layer_shape(4, 2, 10, 5);
  EXPECT_THROW(norms(shape, layer_shape(3, 0, 10, 5), NormsKernel::chosen), ShapeMismatch);
  EXPECT_THROW(norms(shape, layer_shape(4, 0, 9, 5), NormsKernel::chosen), ShapeMismatch);
  EXPECT_THROW(norms(shape, shape, NormsKernel::mma), ShapeMismatch);
  const LayerShape wide = layer_shape(4, 2, 257, 5);
  EXPECT_THROW(norms(wide, wide, NormsKernel::chosen), ShapeMismatch);
  EXPECT_THROW(norms(shape, shape, NormsKernel::wgmma), ShapeMismatch);
  const LayerShape of_80 = layer_shape(4, 2, 80, 5);
  EXPECT_THROW(norms(of_80, of_80, NormsKernel::wgmma), ShapeMismatch);
  EXPECT_EQ(cuda::chosen_norms_kernel<T>(10), NormsKernel::portable);
}

template <class T>
class WgmmaNormsParity : public DeviceTest {
 protected:
  WgmmaNormsParity() : DeviceTest(90) {}
};
TYPED_TEST_SUITE(WgmmaNormsParity, Storage16Types, StorageName);

// 16 multiprocessors of the emulation have 17 pairs of a tile of 256 tokens and a KV head to work on, so that one block
// takes two, each with all its query heads; a group of three leaves the ring of stages in another place for the second.
TYPED_TEST(WgmmaNormsParity, MatchesReferenceWhereBlocksTakeSeveralItems) {
  NormsCheck<TypeParam> check;
  const int64_t kv_heads = std::min(cuda::device().multiprocessors, 16) + 1;
  const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(3 * kv_heads, kv_heads, 64, 72), 3);
  check.hold(input, NormsKernel::wgmma);
}

// One item: shared by a cluster, whose blocks have sections of two stages and fewer, and by one block that has both query heads.
TYPED_TEST(WgmmaNormsParity, HasTheSameBitsWhereAClusterSharesTheColumns) {
  const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(2, 1, 64, 1300), 70);
  const auto norms = [&](int64_t heads_per_block) {
    Output output(2 * input.tokens());
    cuda::critical_kv_norms::launch_wgmma<TypeParam>(
        {input.device_values.view(), input.device_projection.view(), output.data(), heads_per_block},
        nullptr);
    return output.numbers();
  };
  const std::vector<float> by_block = in_every_schedule([&] { return norms(2); });
  EXPECT_TRUE(same_bits(in_every_schedule([&] { return norms(1); }), by_block));
  NormsCheck<TypeParam>().hold(input, NormsKernel::wgmma);
}

TYPED_TEST(ProjectedValueNormsParity, RunsTheFastestKernelThatIsRight) {
  for (const int64_t head_dim : {64, 80, 128}) {
    const cuda::NormsChoice choice = cuda::norms_choice<TypeParam>(head_dim);
    EXPECT_EQ(choice.kernel, kernels<TypeParam>(head_dim).back()) << choice.why;
    EXPECT_EQ(choice.kernel, cuda::chosen_norms_kernel<TypeParam>(head_dim));
    const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(2, 1, head_dim, 5), 3);
    EXPECT_TRUE(same_bits(input.norms(NormsKernel::chosen), input.norms(choice.kernel)));
  }
}

// Kernels that a device's tensor cores might turn into: one number wrong, and a launch that fails.
namespace wrong {

template <class T>
using Arguments = cuda::critical_kv_norms::Arguments<T>;

template <class T>
void one_norm(const Arguments<T>& arguments, cuda::Stream stream) {
  cuda::critical_kv_norms::launch_portable(arguments, stream);
  const float wrong = -1;
  cuda::detail::upload(arguments.norms + 123, &wrong, sizeof wrong, stream);
}

template <class T>
void launch(const Arguments<T>&, cuda::Stream) {
  throw DeviceError("launch", "the driver lacks tensor maps", __FILE__, __LINE__);
}

}  // namespace wrong

TYPED_TEST(ProjectedValueNormsParity, FallsBackFromAKernelThatIsWrong) {
  if constexpr (sizeof(TypeParam) == 2) {
    using cuda::critical_kv_norms::checked_choice;
    const auto expect = [](const cuda::NormsChoice& choice, NormsKernel kernel, const std::string& why) {
      EXPECT_EQ(choice.kernel, kernel);
      EXPECT_THAT(choice.why, testing::ContainsRegex(why));
    };
    const cuda::DeviceCounters before = cuda::counters();
    if (has_wgmma(64)) {
      expect(checked_choice<TypeParam>(64, {.wgmma = wrong::one_norm}), NormsKernel::mma,
             "^wgmma: the norm of query head 0 and token 123 is -1.0* instead of .*; mma: right");
    }
    expect(checked_choice<TypeParam>(64, {.wgmma = wrong::launch, .mma = wrong::one_norm}),
           NormsKernel::portable, "mma: the norm of query head 0 and token 123 is -1.0* instead of");
    expect(checked_choice<TypeParam>(80, {.mma = wrong::launch}), NormsKernel::portable,
           "^mma: .*the driver lacks tensor maps");
    EXPECT_EQ(cuda::counters(), before);
  }
}

class StageTwoScoresParity : public DeviceTest {};

struct StageTwoInput {
  std::vector<float> head_scores, norms;  // [query_heads, cols], [query_heads, norms_stride]
  int64_t query_heads, kv_heads, cols, norms_stride;
};

StageTwoInput stage_two_input(int64_t query_heads, int64_t kv_heads, int64_t cols) {
  StageTwoInput input{
      scores_of(ScoreKind::softmax, 3, query_heads * cols), {}, query_heads, kv_heads, cols, cols + 5};
  for (int64_t h = 0; h < query_heads; ++h) {
    for (const float norm : scores_of(ScoreKind::softmax, static_cast<uint64_t>(h), input.norms_stride)) {
      input.norms.push_back(1000 * norm);
    }
  }
  return input;
}

std::vector<float> device_scores(const StageTwoInput& input, double epsilon, GqaProduct gqa) {
  const cuda::Buffer<float> head_scores{std::span<const float>(input.head_scores)};
  const cuda::Buffer<float> norms{std::span<const float>(input.norms)};
  Output scores(input.kv_heads * input.cols);
  cuda::stage_two_scores(head_scores.data(), norms.data(), input.norms_stride, input.query_heads,
                         input.kv_heads, input.cols, epsilon, gqa, scores.data(), nullptr);
  return scores.numbers();
}

void hold(Comparator& comparator, const StageTwoInput& input, double epsilon, GqaProduct gqa) {
  const std::vector<double> head_scores(input.head_scores.begin(), input.head_scores.end());
  const std::vector<double> norms(input.norms.begin(), input.norms.end());
  const int64_t group = input.query_heads / input.kv_heads;
  const Matrix exact(group, input.cols);
  std::vector<double> expected, bounds;
  for (int64_t g = 0; g < input.kv_heads; ++g) {
    const MatrixView a(head_scores.data() + g * group * input.cols, group, input.cols);
    const MatrixView n(norms.data() + g * group * input.norms_stride, group, input.cols, input.norms_stride);
    std::ranges::copy(reference::stage_two_scores(a, n, epsilon, gqa), std::back_inserter(expected));
    std::ranges::copy(
        reference::stage_two_score_errors(a, exact, n, exact, epsilon, gqa, reference::single_precision()),
        std::back_inserter(bounds));
  }
  EXPECT_TRUE(comparator.hold(device_scores(input, epsilon, gqa), expected, bounds));
}

TEST_F(StageTwoScoresParity, MatchesReferenceAcrossShapes) {
  Comparator comparator("stage_two_scores");
  for (const GqaProduct gqa : {GqaProduct::mean_of_products, GqaProduct::product_of_means}) {
    for (const double epsilon : {1e-4, 0.0, 0.5}) {
      for (const int64_t cols : {1, 31, 32, 33, 700}) {
        for (const int64_t kv_heads : {1, 2, 6})
          hold(comparator, stage_two_input(6, kv_heads, cols), epsilon, gqa);
      }
    }
  }
  EXPECT_TRUE(comparator.is_tight());
}

TEST_F(StageTwoScoresParity, GivesTheSameBitsUnderEverySchedule) {
  const StageTwoInput input = stage_two_input(4, 2, 300);
  in_every_schedule([&] { return device_scores(input, 1e-4, GqaProduct::mean_of_products); });
}

TEST_F(StageTwoScoresParity, WritesNothingForNoEntries) {
  EXPECT_TRUE(device_scores(stage_two_input(4, 2, 0), 1e-4, GqaProduct::mean_of_products).empty());
}

TEST_F(StageTwoScoresParity, RefusesWhatDoesNotFit) {
  const auto call = [](int64_t norms_stride, int64_t query_heads, int64_t kv_heads) {
    cuda::stage_two_scores(nullptr, nullptr, norms_stride, query_heads, kv_heads, 7, 0,
                           GqaProduct::mean_of_products, nullptr, nullptr);
  };
  EXPECT_THROW(call(6, 4, 2), ShapeMismatch);
  EXPECT_THROW(call(7, 4, 3), ShapeMismatch);
}

class SelectCriticalParity : public DeviceTest {};

struct TwoStageRow {
  std::vector<float> attention, stage_two;
  int64_t k, stage_one_count;
};

struct TwoStages {
  std::vector<std::vector<int64_t>> selected, stage_one;
  int status;
};

TwoStages device_selection(const std::vector<TwoStageRow>& rows, bool want_stage_one = true) {
  std::vector<float> attention, stage_two;
  std::vector<int64_t> k, stage_one_count;
  for (const TwoStageRow& row : rows) {
    attention.insert(attention.end(), row.attention.begin(), row.attention.end());
    stage_two.insert(stage_two.end(), row.stage_two.begin(), row.stage_two.end());
    k.push_back(row.k);
    stage_one_count.push_back(row.stage_one_count);
  }
  const cuda::Buffer<float> device_attention{std::span<const float>(attention)};
  const cuda::Buffer<float> device_stage_two{std::span<const float>(stage_two)};
  const cuda::Buffer<int64_t> device_k{std::span<const int64_t>(k)};
  const cuda::Buffer<int64_t> device_count{std::span<const int64_t>(stage_one_count)};
  const auto row_count = std::ssize(rows);
  const auto cols = std::ssize(rows.front().attention);
  Indices selected(k), stage_one(stage_one_count);
  WorkingMemory memory(cuda::select_critical_workspace(row_count, cols));
  cuda::select_critical(device_attention.data(), device_stage_two.data(), row_count, cols, cols,
                        device_k.data(), device_count.data(), selected.result(),
                        want_stage_one ? stage_one.result() : cuda::SelectionResult{}, memory.view(),
                        nullptr);
  if (!want_stage_one) return {selected.rows(), {}, selected.status()};
  return {selected.rows(), stage_one.rows(), selected.status()};
}

void expect_parity(const std::vector<TwoStageRow>& rows) {
  const TwoStages actual = device_selection(rows);
  EXPECT_EQ(actual.status, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    const TwoStageRow& row = rows[r];
    SCOPED_TRACE("row " + std::to_string(r) + ": k = " + std::to_string(row.k) + ", stage one " +
                 std::to_string(row.stage_one_count));
    const std::vector<double> attention(row.attention.begin(), row.attention.end());
    const std::vector<double> stage_two(row.stage_two.begin(), row.stage_two.end());
    const auto expected = reference::select_critical(attention, stage_two, row.k, row.stage_one_count);
    EXPECT_EQ(actual.selected[r], expected.selected);
    EXPECT_EQ(actual.stage_one[r], expected.stage_one);
  }
}

// Rows for several k, each with stage one empty, half of k and all of k.
std::vector<TwoStageRow> rows_of(ScoreKind attention, ScoreKind stage_two, int64_t cols) {
  std::vector<TwoStageRow> rows;
  for (const int64_t k : {int64_t{0}, cols / 5, cols / 2, cols}) {
    for (const int64_t count : {int64_t{0}, k / 2, k}) {
      const uint64_t seed = 2 * rows.size();
      rows.push_back({scores_of(attention, seed, cols), scores_of(stage_two, seed + 1, cols), k, count});
    }
  }
  return rows;
}

TEST_F(SelectCriticalParity, MatchesReferenceAcrossShapesAndScores) {
  for (const int64_t cols : {1, 31, 32, 33, 1500}) {
    for (const ScoreKind kind : kScoreKinds) {
      SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(cols) + " columns");
      expect_parity(rows_of(kind, ScoreKind::softmax, cols));
      expect_parity(rows_of(ScoreKind::softmax, kind, cols));
    }
    expect_parity(rows_of(ScoreKind::few_values, ScoreKind::few_values, cols));
    expect_parity(rows_of(ScoreKind::equal, ScoreKind::equal, cols));
  }
}

TEST_F(SelectCriticalParity, MatchesReferenceForTheLongestRows) {
  const int64_t cols = cuda::kMostScores;
  expect_parity({{scores_of(ScoreKind::softmax, 1, cols), scores_of(ScoreKind::few_values, 2, cols), cols / 5,
                  cols / 10}});
  without_clusters([&] {
    expect_parity({{scores_of(ScoreKind::softmax, 1, cols), scores_of(ScoreKind::few_values, 2, cols),
                    cols / 5, cols / 10}});
  });
}

TEST_F(SelectCriticalParity, MatchesReferenceForRowsThatBlocksShare) {
  expect_parity(rows_of(ScoreKind::softmax, ScoreKind::few_values, 4097));
  expect_parity(rows_of(ScoreKind::few_values, ScoreKind::normal, 9000));
  const int64_t cols = 40000;  // more than four keys of a thread
  expect_parity({{scores_of(ScoreKind::softmax, 1, cols), scores_of(ScoreKind::few_values, 2, cols), cols / 5,
                  cols / 10}});
}

TEST_F(SelectCriticalParity, PutsNoEntryTwiceWhereBothStagesWantTheSame) {
  const std::vector<float> infinities(40, std::numeric_limits<float>::infinity());
  expect_parity({{infinities, infinities, 17, 9}});
}

TEST_F(SelectCriticalParity, DoesWithoutStageOnesIndices) {
  const std::vector<TwoStageRow> rows = rows_of(ScoreKind::normal, ScoreKind::softmax, 100);
  EXPECT_EQ(device_selection(rows, false).selected, device_selection(rows).selected);
}

TEST_F(SelectCriticalParity, TellsOfNanWhereverTheReferenceDoes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TwoStageRow row{scores_of(ScoreKind::rising, 1, 50), scores_of(ScoreKind::normal, 2, 50), 20, 10};
  TwoStageRow attention = row, stage_two = row, stage_one = row;
  attention.attention[0] = nan;
  stage_two.stage_two[0] = nan;
  stage_one.stage_two[49] = nan;  // stage one has already selected this entry
  EXPECT_EQ(device_selection({attention}).status, 1);
  EXPECT_EQ(device_selection({stage_two}).status, 1);
  EXPECT_EQ(device_selection({stage_one}).status, 0);
}

TEST_F(SelectCriticalParity, TellsOfNanInRowsThatBlocksShare) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TwoStageRow row{scores_of(ScoreKind::rising, 1, 4500), scores_of(ScoreKind::normal, 2, 4500), 20, 10};
  TwoStageRow stage_two = row, stage_one = row;
  stage_two.stage_two[0] = nan;
  stage_one.stage_two[4499] = nan;  // stage one has already selected this entry
  EXPECT_EQ(device_selection({stage_two}).status, 1);
  EXPECT_EQ(device_selection({stage_one}).status, 0);
}

TEST_F(SelectCriticalParity, GivesTheSameUnderEverySchedule) {
  const std::vector<TwoStageRow> rows{
      {scores_of(ScoreKind::few_values, 1, 1200), scores_of(ScoreKind::softmax, 2, 1200), 500, 200}};
  in_every_schedule([&] { return device_selection(rows).selected; });
  const std::vector<TwoStageRow> shared{
      {scores_of(ScoreKind::few_values, 1, 4200), scores_of(ScoreKind::softmax, 2, 4200), 500, 200}};
  in_every_schedule([&] { return device_selection(shared).selected; });
}

TEST_F(SelectCriticalParity, RefusesRowsThatAreTooLong) {
  const auto refusal = [](int64_t columns) {
    return test::message_of<ShapeMismatch>([&] {
      cuda::select_critical(nullptr, nullptr, 1, columns, columns, nullptr, nullptr, {}, {}, {}, nullptr);
    });
  };
  EXPECT_THAT(refusal(cuda::kMostScores + 1), testing::HasSubstr("columns of the scores"));
  EXPECT_THAT(refusal(10), testing::HasSubstr("the workspace has 0 bytes"));
}

}  // namespace
}  // namespace kvbound::parity
