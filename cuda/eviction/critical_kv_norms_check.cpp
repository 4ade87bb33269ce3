#include "critical_kv_norms_check.hpp"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/support/memory_pool.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/cuda/support/uncounted.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace critical_kv_norms {
namespace {

// A block of 256 tokens with a ragged tail, which takes both heads, or two clusters that take one
// each: in all eight stages of 128 columns, the last of each head ragged, so that each of wgmma's
// three is filled more than once.
constexpr int64_t kHeads = 2;
constexpr int64_t kTokens = 200;
constexpr int64_t kColumns = 456;

// Random numbers -2, ..., 63/32, exact in every type.
Tensor numbers(int64_t slices, int64_t rows, int64_t cols, uint32_t seed) {
  Tensor tensor(slices, rows, cols);
  uint32_t state = seed;
  for (double& entry : tensor.numbers()) {
    state = state * 1664525 + 1013904223;
    entry = (static_cast<double>(state >> 25) - 64) / 32;
  }
  return tensor;
}

struct Problem {
  Tensor values;      // [1, kTokens, head_dim]
  Tensor projection;  // [kHeads, head_dim, kColumns]

  explicit Problem(int64_t head_dim)
      : values(numbers(1, kTokens, head_dim, 1)), projection(numbers(kHeads, head_dim, kColumns, 2)) {}
};

double absolute_sum(VectorView row) {
  double sum = 0;
  for (const double x : row) sum += std::abs(x);
  return sum;
}

// The exact norm of one token and query head, and the sum of its values' absolute values
// times their rows' norms.
struct Exact {
  double norm, size;
};

// [kHeads * kTokens]
std::vector<Exact> exact_norms(const Problem& problem) {
  std::vector<Exact> all;
  for (int64_t head = 0; head < kHeads; ++head) {
    const MatrixView projection = problem.projection.slice(head);
    std::vector<double> row_norms;
    for (int64_t c = 0; c < projection.rows; ++c) row_norms.push_back(absolute_sum(projection.row(c)));
    for (int64_t token = 0; token < kTokens; ++token) {
      const VectorView value = problem.values.slice(0).row(token);
      std::vector<double> projected(kColumns);
      double size = 0;
      for (int64_t c = 0; c < projection.rows; ++c) {
        const VectorView row = projection.row(c);
        for (int64_t i = 0; i < kColumns; ++i) projected[i] += value[c] * row[i];
        size += std::abs(value[c]) * row_norms[c];
      }
      all.push_back({absolute_sum(projected), size});
    }
  }
  return all;
}

// The bound of projected_value_norm_errors where nothing is known of running sums; 2 covers
// what is of second order.
double bound(const Exact& exact, const KernelArithmetic& arithmetic) {
  constexpr double kUnit = 0x1p-24;
  const double tensor = static_cast<double>(arithmetic.tensor_chain) * arithmetic.tensor_sums;
  const double products = tensor + static_cast<double>(arithmetic.product_depth + 1) * kUnit;
  const double adding = static_cast<double>(arithmetic.accumulation_depth + 3) * kUnit;
  return 2 * (products * exact.size + adding * exact.norm);
}

template <Storage T>
using Launch = void (*)(const Arguments<T>&, Stream);

// What is wrong with the kernel's norms; nullopt: nothing.
template <Storage T>
std::optional<std::string> wrong_norm(const Problem& problem, Launch<T> launch, int64_t heads_per_block,
                                      const KernelArithmetic& arithmetic) {
  const StoredTensor<T> values(problem.values, nullptr);
  const StoredTensor<T> projection(problem.projection, nullptr);
  Buffer<float> found(kHeads * kTokens);
  launch({values.view(), projection.view(), found.data(), heads_per_block}, nullptr);
  std::vector<float> norms(kHeads * kTokens);
  found.download(norms);
  const std::vector<Exact> all = exact_norms(problem);
  for (int64_t i = 0; i < std::ssize(norms); ++i) {
    const Exact& exact = all[i];
    if (std::abs(norms[i] - exact.norm) <= bound(exact, arithmetic)) continue;
    return "the norm of query head " + std::to_string(i / kTokens) + " and token " +
           std::to_string(i % kTokens) + " is " + std::to_string(norms[i]) + " instead of " +
           std::to_string(exact.norm);
  }
  return std::nullopt;
}

// Why the kernel cannot be trusted; nullopt: it can.
template <Storage T>
std::optional<std::string> fault_of(Launch<T> launch, int64_t head_dim, NormsKernel kernel) {
  const Problem problem(head_dim);
  const KernelArithmetic arithmetic = norms_arithmetic(head_dim, kColumns, kernel);
  try {
    for (const int64_t heads_per_block : {kHeads, int64_t{1}}) {
      if (auto wrong = wrong_norm<T>(problem, launch, heads_per_block, arithmetic)) return wrong;
    }
  } catch (const DeviceError& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace

template <Storage T>
NormsChoice checked_choice(int64_t head_dim, const TensorCoreKernels<T>& kernels) {
  const Uncounted uncounted;
  const PoolScope without_pool;
  std::string why;
  const auto is_right = [&](NormsKernel kernel, const char* name, Launch<T> launch) {
    const auto fault = fault_of<T>(launch, head_dim, kernel);
    why += std::string(why.empty() ? "" : "; ") + name + ": " + fault.value_or("right on a small problem");
    return !fault;
  };
  if (wgmma_can(head_dim) && is_right(NormsKernel::wgmma, "wgmma", kernels.wgmma)) {
    return {NormsKernel::wgmma, why};
  }
  if (mma_can(head_dim) && is_right(NormsKernel::mma, "mma", kernels.mma)) return {NormsKernel::mma, why};
  if (why.empty()) why = "no tensor core kernel for head_dim " + std::to_string(head_dim) + " on this device";
  return {NormsKernel::portable, why};
}
template NormsChoice checked_choice(int64_t, const TensorCoreKernels<Float16>&);
template NormsChoice checked_choice(int64_t, const TensorCoreKernels<Bfloat16>&);

}  // namespace critical_kv_norms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
