#include "nearest_key_check.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <kvbound/cuda/support/memory_pool.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/cuda/support/uncounted.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace nearest_key_search {
namespace {

// 150 leaving keys, with a ragged tail in the second of wgmma's consumers, and seven stages of 128 kept keys,
// the last of them ragged, so that each of the three in shared memory is filled more than once.
constexpr int64_t kLeaving = 150;
constexpr int64_t kKept = 800;

// Random numbers -2, ..., 63/32, exact in every type; of BF16 every 13th key is too long for
// products in single precision.
template <Storage T>
Tensor keys(int64_t rows, int64_t head_dim, uint32_t seed) {
  Tensor tensor(1, rows, head_dim);
  uint32_t state = seed;
  int64_t n = 0;
  for (double& entry : tensor.numbers()) {
    state = state * 1664525 + 1013904223;
    entry = (static_cast<double>(state >> 25) - 64) / 32;
    if (std::is_same_v<T, Bfloat16> && n++ / head_dim % 13 == 5) entry *= 0x1p70;
  }
  return tensor;
}

template <Storage T>
struct Problem {
  Tensor leaving, kept;
  std::vector<double> cosines;  // [kLeaving, kKept]

  explicit Problem(int64_t head_dim)
      : leaving(keys<T>(kLeaving, head_dim, 1)), kept(keys<T>(kKept, head_dim, 2)) {
    const MatrixView own = leaving.slice(0), others = kept.slice(0);
    for (int64_t i = 0; i < kLeaving; ++i) {
      for (int64_t j = 0; j < kKept; ++j) {
        double product = 0, length = 0, other = 0;
        for (int64_t c = 0; c < head_dim; ++c) {
          product += own(i, c) * others(j, c);
          length += own(i, c) * own(i, c);
          other += others(j, c) * others(j, c);
        }
        cosines.push_back(product / std::sqrt(length) / std::sqrt(other));
      }
    }
  }
};

// cosine_error for exact keys (reference/bounds/merge_cluster_errors.md); 2 covers what is of second order.
double bound(int64_t head_dim, const KernelArithmetic& arithmetic) {
  const double tensor = static_cast<double>(arithmetic.tensor_chain) * arithmetic.tensor_sums;
  return 2 * (tensor + static_cast<double>(arithmetic.product_depth + head_dim + 12) * 0x1p-24);
}

template <Storage T>
using Launch = void (*)(const Arguments<T>&, Stream);

struct Found {
  std::vector<int64_t> index;
  std::vector<float> cosine;
};

template <Storage T>
Found found_by(const Problem<T>& problem, Launch<T> launch) {
  const StoredTensor<T> leaving(problem.leaving, nullptr), kept(problem.kept, nullptr);
  Buffer<float> norms(kLeaving), kept_norms(kKept), cosine(kLeaving);
  Buffer<int64_t> index(kLeaving);
  key_norms<T>(leaving.view(), nullptr, norms.data(), nullptr);
  key_norms<T>(kept.view(), nullptr, kept_norms.data(), nullptr);
  launch({{leaving.view(), norms.data(), nullptr},
          nullptr,
          kLeaving,
          nullptr,
          {kept.view(), kept_norms.data(), nullptr},
          {index.data(), cosine.data(), kLeaving},
          {}},
         nullptr);
  Found found{std::vector<int64_t>(kLeaving), std::vector<float>(kLeaving)};
  index.download(found.index);
  cosine.download(found.cosine);
  return found;
}

// What is wrong with the kernel's nearest keys; nullopt: nothing.
template <Storage T>
std::optional<std::string> wrong_key(const Problem<T>& problem, Launch<T> launch, double off) {
  const Found found = found_by(problem, launch);
  for (int64_t i = 0; i < kLeaving; ++i) {
    const double* const cosines = problem.cosines.data() + i * kKept;
    const double most = *std::max_element(cosines, cosines + kKept);
    const int64_t index = found.index[i];
    const bool exists = 0 <= index && index < kKept;
    if (exists && std::abs(found.cosine[i] - cosines[index]) <= off && most <= cosines[index] + 2 * off)
      continue;
    return "the nearest key of key " + std::to_string(i) + " is " + std::to_string(index) +
           " with a cosine of " + std::to_string(found.cosine[i]) + "; the largest one is " +
           std::to_string(most);
  }
  return std::nullopt;
}

// Why the kernel cannot be trusted; nullopt: it can.
template <Storage T>
std::optional<std::string> fault_of(const Problem<T>& problem, int64_t head_dim, Launch<T> launch,
                                    SearchKernel kernel) {
  try {
    return wrong_key<T>(problem, launch, bound(head_dim, nearest_keys_arithmetic(head_dim, kernel)));
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace

template <Storage T>
SearchChoice checked_choice(int64_t head_dim, const TensorCoreKernels<T>& kernels) {
  const Uncounted uncounted;
  const PoolScope without_pool;
  if (device().compute_capability < 80)
    return {SearchKernel::portable, "no tensor core kernel on this device"};
  const Problem<T> problem(head_dim);
  std::string why;
  const auto is_right = [&](SearchKernel kernel, const char* name, Launch<T> launch) {
    const auto fault = fault_of<T>(problem, head_dim, launch, kernel);
    why += std::string(why.empty() ? "" : "; ") + name + ": " + fault.value_or("right on a small problem");
    return !fault;
  };
  if (wgmma_can(head_dim) && is_right(SearchKernel::wgmma, "wgmma", kernels.wgmma)) {
    return {SearchKernel::wgmma, why};
  }
  if (is_right(SearchKernel::mma, "mma", kernels.mma)) return {SearchKernel::mma, why};
  return {SearchKernel::portable, why};
}
template SearchChoice checked_choice(int64_t, const TensorCoreKernels<Float16>&);
template SearchChoice checked_choice(int64_t, const TensorCoreKernels<Bfloat16>&);

}  // namespace nearest_key_search
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
