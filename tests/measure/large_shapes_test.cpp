// K1, K2 and K3 at the size of a model's layer, on poisoned outputs: within the derived bounds of float64,
// and the same bits in every run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/cuda/roofline/roofline.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "gate_layer.hpp"
#include "row_sums.hpp"

namespace kvbound::measure {
namespace {

using cuda::NormsKernel;
using parity::Comparator;
using parity::Output;
using parity::same_bits;
using parity::WorkingMemory;

class LargeShapes : public parity::DeviceTest {};

// The results of two runs, which must be the same bits.
template <class Results>
auto twice(const Results& results) {
  const auto first = results();
  EXPECT_TRUE(same_bits(results(), first)) << "other bits in the second run";
  return first;
}

// Compares results that may use little of their bounds, because errors of many addends average out.
void expect_held(const std::string& what, std::span<const float> actual, VectorView expected,
                 VectorView bounds) {
  Comparator comparator(what);
  EXPECT_TRUE(comparator.hold(actual, expected, bounds)) << what;
  std::printf("%s: %zu numbers, median of bound over error %.3g\n", what.c_str(), expected.size(),
              comparator.median_slack());
}

TEST_F(LargeShapes, AttentionOfEveryHeadIsThatOfFloat64) {
  const GateShape& shape = gate_shape();
  const LayerShape& layer = shape.layer;
  const GateTensor keys = gate_keys(), values = gate_values(),
                   queries = GateTensor(6, 1, layer.query_heads, layer.head_dim, 2);
  const cuda::Buffer<int64_t> entries(std::vector<int64_t>(layer.kv_heads, shape.tokens));
  const auto results = twice([&] {
    Output output(layer.query_heads * layer.head_dim), log_sum_exp(layer.query_heads),
        logits(layer.query_heads * shape.tokens);
    WorkingMemory memory(
        cuda::attention_workspace(layer.query_heads, layer.kv_heads, layer.head_dim, shape.tokens));
    cuda::attention<Stored>(queries.device(), {keys.device(), values.device(), entries.data(), nullptr},
                            shape.scale(), {output.data(), log_sum_exp.data(), logits.data()}, memory.view(),
                            nullptr);
    return std::vector{output.numbers(), log_sum_exp.numbers(), logits.numbers()};
  });
  const reference::Arithmetic arithmetic =
      reference::arithmetic_of(cuda::attention_arithmetic<Stored>(shape.tokens, layer.head_dim));
  std::vector<double> outputs, sums, logits, output_bounds, sum_bounds, logit_bounds;
  const auto append = [](std::vector<double>& to, VectorView some) {
    to.insert(to.end(), some.begin(), some.end());
  };
  for (int64_t g = 0; g < layer.kv_heads; ++g) {
    const MatrixView q = queries.host().slice(0).middle_rows(g * layer.group_size(), layer.group_size());
    const MatrixView k = keys.host().slice(g), v = values.host().slice(g);
    const auto expected = reference::attention(q, k, v, shape.scale(), {});
    const auto bounds = reference::attention_errors(q, k, v, shape.scale(), {}, arithmetic);
    append(outputs, expected.output.numbers());
    append(output_bounds, bounds.output.numbers());
    append(sums, expected.log_sum_exp);
    append(sum_bounds, bounds.log_sum_exp);
    append(logits, reference::attention_logits(q, k, shape.scale()).numbers());
    append(logit_bounds, bounds.logits.numbers());
  }
  expect_held("K1 outputs", results[0], outputs, output_bounds);
  expect_held("K1 log-sum-exp", results[1], sums, sum_bounds);
  expect_held("K1 logits", results[2], logits, logit_bounds);
}

TEST_F(LargeShapes, WindowAttentionOfSampledHeadsIsThatOfFloat64) {
  const GateShape& shape = gate_shape();
  const LayerShape& layer = shape.layer;
  const GateTensor keys = gate_keys(), queries = gate_queries(shape.window);
  const cuda::WindowView<Stored> window{queries.device(), keys.device(), shape.scale()};
  const auto results = twice([&] {
    Output log_sum_exp(layer.query_heads * shape.window), mean(layer.query_heads * shape.tokens);
    WorkingMemory memory(cuda::window_log_sum_exp_workspace(layer.query_heads, shape.window, shape.tokens));
    cuda::window_log_sum_exp(window, log_sum_exp.data(), memory.view(), nullptr);
    cuda::window_attention(window, log_sum_exp.data(), WindowReduction::mean, mean.data(), nullptr);
    return std::vector{log_sum_exp.numbers(), mean.numbers()};
  });
  const reference::Arithmetic arithmetic =
      reference::arithmetic_of(cuda::window_arithmetic<Stored>(shape.tokens, layer.head_dim));
  for (const int64_t g : {int64_t{0}, layer.kv_heads - 1}) {
    const int64_t first = g * layer.group_size();
    std::vector<int64_t> heads;
    for (int64_t h = first; h < first + layer.group_size(); ++h) heads.push_back(h);
    const Tensor own_keys = slices_of(keys.host(), {g}), own_queries = slices_of(queries.host(), heads);
    const LayerView own{
        {layer.group_size(), 1, layer.head_dim, 1}, shape.scale(), own_keys, own_keys, own_queries, {}};
    const auto part = [&](const std::vector<float>& all, int64_t row) {
      return std::span(all).subspan(first * row, layer.group_size() * row);
    };
    const std::string head = " of KV head " + std::to_string(g);
    const auto bounds = reference::window_attention_errors(own, shape.window, arithmetic);
    expect_held("K2 mean attention" + head, part(results[1], shape.tokens),
                reference::window_attention(own, shape.window).numbers(), bounds.numbers());
    std::vector<double> sums;
    for (int64_t h = 0; h < layer.group_size(); ++h) {
      const Matrix logits =
          reference::attention_logits(own_queries.slice(h), own_keys.slice(0), shape.scale());
      for (int64_t i = 0; i < shape.window; ++i) {
        const int64_t visible = shape.tokens - shape.window + i + 1;
        sums.push_back(reference::log_sum_exp(VectorView(logits.row(i)).first(visible)));
      }
    }
    expect_held("K2 log-sum-exp" + head, part(results[0], shape.window), sums,
                reference::window_log_sum_exp_errors(own, shape.window, arithmetic).numbers());
  }
}

std::string name_of(NormsKernel kernel) {
  switch (kernel) {
    case NormsKernel::chosen:
      return "chosen";
    case NormsKernel::portable:
      return "portable";
    case NormsKernel::mma:
      return "mma";
    case NormsKernel::wgmma:
      return "wgmma";
  }
  return "";
}

// Those that this device can run.
std::vector<NormsKernel> tensor_core_kernels() {
  if (!cuda::device().has_wgmma) return {NormsKernel::mma};
  return {NormsKernel::mma, NormsKernel::wgmma};
}

// A layer's values and W^O, the device's norms and their error bounds.
struct NormsGate {
  GateTensor values = gate_values(), projection = gate_projection();

  MatrixView matrix() const {
    const TensorView all = projection.host();
    return {all.data, all.slices * all.rows, all.cols};
  }
  std::vector<float> norms(NormsKernel kernel) const {
    return twice([&] {
      Output output(gate_shape().layer.query_heads * gate_shape().tokens);
      cuda::projected_value_norms<Stored>(values.device(), projection.device(), output.data(), nullptr,
                                          kernel);
      return output.numbers();
    });
  }
  std::vector<float> norms_l2() const {
    const LayerShape& layer = gate_shape().layer;
    return twice([&] {
      Output gram(layer.query_heads * layer.head_dim * layer.head_dim);
      Output factor(layer.query_heads * layer.head_dim * layer.head_dim);
      Output output(layer.query_heads * gate_shape().tokens);
      WorkingMemory memory(cuda::gram_matrices_workspace(layer.query_heads, layer.head_dim));
      cuda::gram_matrices<Stored>(projection.device(), gram.data(), factor.data(), memory.view(), nullptr);
      cuda::projected_value_norms_l2<Stored>(values.device(), factor.data(), layer.query_heads, output.data(),
                                             nullptr);
      return output.numbers();
    });
  }
  /// Bounds for the L1 norms of some tokens' values.
  Matrix bounds(TensorView some, MatrixView of_norms, const reference::Arithmetic& arithmetic) const {
    return reference::projected_value_norm_errors(gate_shape().layer, some, matrix(), Norm::l1, of_norms,
                                                  arithmetic);
  }
};

reference::Arithmetic norms_arithmetic(NormsKernel kernel) {
  const LayerShape& layer = gate_shape().layer;
  return reference::arithmetic_of(cuda::norms_arithmetic(layer.head_dim, layer.model_dim, kernel));
}

TEST_F(LargeShapes, NormsOfSampledTokensAreThoseOfFloat64) {
  const GateShape& shape = gate_shape();
  const NormsGate gate;
  const std::vector<int64_t> tokens = sampled(shape.tokens);
  const Tensor some = rows_of(gate.values.host(), tokens);
  const auto expect = [&](Norm norm, const std::string& by, const std::vector<float>& all,
                          const reference::Arithmetic& arithmetic) {
    const Matrix expected = reference::projected_value_norms(shape.layer, some, gate.matrix(), norm);
    std::vector<float> norms;
    for (int64_t h = 0; h < shape.layer.query_heads; ++h) {
      for (const int64_t j : tokens) norms.push_back(all[h * shape.tokens + j]);
    }
    const Matrix bounds =
        reference::projected_value_norm_errors(shape.layer, some, gate.matrix(), norm, expected, arithmetic);
    expect_held("K3 " + by, norms, expected.numbers(), bounds.numbers());
  };
  std::vector<NormsKernel> kernels = tensor_core_kernels();
  kernels.push_back(NormsKernel::portable);
  for (const NormsKernel kernel : kernels)
    expect(Norm::l1, "L1, " + name_of(kernel), gate.norms(kernel), norms_arithmetic(kernel));
  const LayerShape& layer = shape.layer;
  expect(Norm::l2, "L2", gate.norms_l2(),
         reference::arithmetic_of(cuda::norms_l2_arithmetic<Stored>(layer.head_dim)));
}

// Two results, each within its bound of the same exact norm, which neither knows. The bounds grow with that
// norm, by a share below 1. They are taken for twice the portable norm: where even that one's bound is no
// larger than the portable norm itself, the exact norm is below twice the portable one, and the bounds hold.
void expect_close(const NormsGate& gate, std::span<const float> portable, const std::string& what,
                  std::span<const float> other, const reference::Arithmetic& others) {
  const GateShape& shape = gate_shape();
  Matrix doubled(shape.layer.query_heads, shape.tokens);
  std::vector<double> expected(portable.begin(), portable.end());
  std::ranges::transform(expected, doubled.view().row(0).data(), [](double size) { return 2 * size; });
  const TensorView values = gate.values.host();
  const Matrix own = gate.bounds(values, doubled, norms_arithmetic(NormsKernel::portable));
  Matrix bounds = gate.bounds(values, doubled, others);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_LE(own.numbers()[i], expected[i]) << what << ": the portable norm " << i << " says nothing";
    bounds.data()[i] += own.numbers()[i];
  }
  expect_held("K3 L1, portable and " + what, other, expected, bounds.numbers());
}

TEST_F(LargeShapes, NormsOfAllTokensByTensorCoresAreThoseOfThePortableKernel) {
  const NormsGate gate;
  const std::vector<float> portable = gate.norms(NormsKernel::portable);
  for (const NormsKernel kernel : tensor_core_kernels())
    expect_close(gate, portable, name_of(kernel), gate.norms(kernel), norms_arithmetic(kernel));
}

// The products of a matrix library, in fp32, and their rows' L1 norms: [query_heads, tokens].
std::vector<float> norms_by_library(const NormsGate& gate, cuda::MatrixLibrary& library) {
  const GateShape& shape = gate_shape();
  const LayerShape& layer = shape.layer;
  const cuda::StoredTensor<Stored> values(gate.values.host(), nullptr),
      projection(gate.projection.host(), nullptr);
  cuda::Buffer<float> products(shape.tokens * layer.model_dim);
  Output norms(layer.query_heads * shape.tokens);
  for (int64_t h = 0; h < layer.query_heads; ++h) {
    const auto v = values.view(), w = projection.view();
    library.multiply(v.data + layer.kv_head_of(h) * v.slice_stride, w.data + h * w.slice_stride,
                     products.data(), {shape.tokens, layer.head_dim, layer.model_dim}, nullptr);
    cuda::row_sums(products.data(), shape.tokens, layer.model_dim, norms.data() + h * shape.tokens, nullptr);
  }
  return norms.numbers();
}

TEST_F(LargeShapes, NormsOfAllTokensByCublasAreThoseOfThePortableKernel) {
  std::string why;
  const auto library = cuda::MatrixLibrary::open(&why);
  if (!library) {
    std::printf("K3 L1, portable and cuBLAS: not done: %s\n", why.c_str());
    EXPECT_NE(why, "");
    return;
  }
  const NormsGate gate;
  const std::vector<float> by_library = twice([&] { return norms_by_library(gate, *library); });
  reference::Arithmetic any_order = reference::tensor_core_precision().in_any_order();
  any_order.accumulation_depth = cuda::row_sums_depth(gate_shape().layer.model_dim);
  expect_close(gate, gate.norms(NormsKernel::portable), library->name(), by_library, any_order);
}

TEST_F(LargeShapes, SumsOfRowsAreThoseOfFloat64) {
  constexpr int64_t kRows = 3;
  const int64_t cols = gate_shape().layer.model_dim;
  const Tensor numbers = parity::rounded<float>(parity::random_tensor(7, 1, kRows, cols));
  const cuda::Buffer<float> on_device(std::vector<float>(numbers.numbers().begin(), numbers.numbers().end()));
  const std::vector<float> sums = twice([&] {
    Output output(kRows);
    cuda::row_sums(on_device.data(), kRows, cols, output.data(), nullptr);
    return output.numbers();
  });
  std::vector<double> expected, bounds;
  for (int64_t i = 0; i < kRows; ++i) {
    double sum = 0;
    for (const double entry : numbers.slice(0).row(i)) sum += std::abs(entry);
    expected.push_back(sum);
    // A sum of non-negative numbers, each of which passes through so many additions of relative error u.
    const double u = reference::single_precision().unit;
    bounds.push_back(sum * (std::pow(1 + u, cuda::row_sums_depth(cols)) - 1));
  }
  expect_held("sums of rows", sums, expected, bounds);
}

}  // namespace
}  // namespace kvbound::measure
