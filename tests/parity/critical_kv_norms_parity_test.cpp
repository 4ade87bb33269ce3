// Projected value norms within their error bounds, by every kernel, and which kernel runs.
#include <algorithm>
#include <cmath>
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

#include "support.hpp"

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
  std::vector<float> norms_l2(bool squared = false) const {
    const int64_t numbers = shape.query_heads * shape.head_dim * shape.head_dim;
    Output gram(numbers), factor(numbers), output(shape.query_heads * tokens());
    WorkingMemory memory(cuda::gram_matrices_workspace(shape.query_heads, shape.head_dim));
    cuda::gram_matrices<T>(device_projection.view(), gram.data(), factor.data(), memory.view(), nullptr);
    const auto lengths = squared ? cuda::squared_norms<T> : cuda::projected_value_norms_l2<T>;
    lengths(device_values.view(), factor.data(), shape.query_heads, output.data(), nullptr);
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

// Whether a kernel's requirements are met does not depend on what it computes: see
// RunsTheFastestKernelThatIsRight.
bool has_wgmma(int64_t head_dim) { return (head_dim == 64 || head_dim == 128) && cuda::device().has_wgmma; }

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
    const KernelArithmetic arithmetic = cuda::norms_l2_arithmetic<T>(shape.head_dim);
    hold(input, Norm::l2, "L2", input.norms_l2(), reference::arithmetic_of(arithmetic));
  }
  void expect_tight() {
    for (const auto& [_, comparator] : comparators_) EXPECT_TRUE(comparator.is_tight());
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

  std::map<std::string, Comparator> comparators_;
};

// Values of which W^O leaves almost nothing, between others: v G v^T is the small difference of large
// numbers. Every row of W^O is the first one plus a little, and these values' numbers add up to almost 0.
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

// Calls with_input(input) for inputs of many shapes.
template <cuda::Storage T, class WithInput>
void for_each_shape(WithInput with_input) {
  const auto with = [&](const LayerShape& shape, int64_t tokens) {
    SCOPED_TRACE("tokens " + std::to_string(tokens) + ", head_dim " + std::to_string(shape.head_dim) +
                 ", model_dim " + std::to_string(shape.model_dim));
    with_input(norms_input<T>(shape, tokens));
  };
  for (const int64_t head_dim : {8, 10, 64, 80, 128, 256}) {
    for (const int64_t tokens : {1, 31, 32, 33}) with(layer_shape(2, 1, head_dim, 33), tokens);
    for (const int64_t model_dim : {1, 8, 256}) with(layer_shape(4, 2, head_dim, model_dim), 20);
  }
}

template <class T>
class ProjectedValueNormsParity : public DeviceTest {};
TYPED_TEST_SUITE(ProjectedValueNormsParity, StorageTypes, StorageName);

TYPED_TEST(ProjectedValueNormsParity, MatchesReferenceAcrossShapes) {
  NormsCheck<TypeParam> check;
  for_each_shape<TypeParam>([&](const NormsInput<TypeParam>& input) {
    for (const NormsKernel kernel : kernels<TypeParam>(input.shape.head_dim)) check.hold(input, kernel);
  });
  check.expect_tight();
}

// With few columns a Gram matrix is singular, and its factor uncertain. Bounds are wide then: tight ones are
// expected below.
TYPED_TEST(ProjectedValueNormsParity, MatchesReferenceAcrossShapesInL2) {
  NormsCheck<TypeParam> check;
  for_each_shape<TypeParam>([&](const NormsInput<TypeParam>& input) { check.hold_l2(input); });
}

TYPED_TEST(ProjectedValueNormsParity, MatchesReferenceForManyTokensAndColumns) {
  NormsCheck<TypeParam> check;
  const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(4, 2, 128, 1000), 300);
  for (const NormsKernel kernel : kernels<TypeParam>(128)) check.hold(input, kernel);
  check.hold_l2(input);
  check.expect_tight();
}

// An L2 norm's square that is a small share of what a Gram matrix adds up.
TYPED_TEST(ProjectedValueNormsParity, KeepsNormsOfValuesThatWAlmostCancels) {
  NormsCheck<TypeParam> check;
  for (const int64_t head_dim : {8, 80, 128}) {
    const NormsInput<TypeParam> input = cancelling_input<TypeParam>(head_dim, 200, 70);
    check.hold_l2(input);
    const std::vector<float> norms = in_every_schedule([&] { return input.norms_l2(); });
    EXPECT_THAT(norms, testing::Each(testing::Gt(0)));
  }
}

// A row of zeros is a column of zeros of the factor, and the others are as they were.
TYPED_TEST(ProjectedValueNormsParity, TakesRowsOfZeros) {
  NormsCheck<TypeParam> check;
  NormsInput<TypeParam> plain = norms_input<TypeParam>(layer_shape(4, 2, 40, 60), 20);
  for (int64_t h = 0; h < 4; ++h) std::ranges::fill(plain.projection.slice(h).row(h), 0.0);
  check.hold_l2({plain.shape, std::move(plain.values), std::move(plain.projection)});
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
TYPED_TEST(ProjectedValueNormsParity, AreRootsOfSquaredLengths) {
  for (const auto& [head_dim, tokens] : {std::pair(10, 70), {64, 1100}, {128, 70}}) {
    const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(4, 2, head_dim, 200), tokens);
    std::vector<float> roots = input.norms_l2(true);
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

// The number of tokens decides whether a block takes one query head of a group or all of them:
// the bits must not change.
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

// 16 multiprocessors of the emulation have 17 pairs of a tile of 256 tokens and a KV head to work on, so
// that one block takes two, each with all its query heads; a group of three leaves the ring of stages in
// another place for the second.
TYPED_TEST(WgmmaNormsParity, MatchesReferenceWhereBlocksTakeSeveralItems) {
  NormsCheck<TypeParam> check;
  const int64_t kv_heads = std::min(cuda::device().multiprocessors, 16) + 1;
  const NormsInput<TypeParam> input = norms_input<TypeParam>(layer_shape(3 * kv_heads, kv_heads, 64, 72), 3);
  check.hold(input, NormsKernel::wgmma);
}

// One item: shared by a cluster, whose blocks have sections of two stages and fewer, and by one block
// that has both query heads.
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

}  // namespace
}  // namespace kvbound::parity
