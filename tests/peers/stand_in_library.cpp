// Stand-ins for other libraries, in plain loops on this processor: `processor` computes what is asked for,
// `faulty` the same without the last token, or the best entry. With them all but the libraries' own kernels
// is tried without a GPU.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <kvbound/cuda/support/stored_tensor.hpp>

#include "kernel_library.hpp"

namespace kvbound::sim {
namespace {

constexpr int64_t kFaultyHeadDim = 64;

double dot(const cuda::Bfloat16* a, const cuda::Bfloat16* b, int64_t size) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += cuda::unstored(a[i]) * cuda::unstored(b[i]);
  return sum;
}

void attend_head(const AttentionCall& call, int64_t head, int64_t tokens) {
  const int64_t first = head / (call.query_heads / call.kv_heads) * call.tokens * call.head_dim;
  const cuda::Bfloat16* query = call.queries + head * call.head_dim;
  std::vector<double> weights(tokens), output(call.head_dim);
  for (int64_t j = 0; j < tokens; ++j)
    weights[j] = call.scale * dot(query, call.keys + first + j * call.head_dim, call.head_dim);
  const double largest = std::ranges::max(weights);
  for (double& weight : weights) weight = std::exp(weight - largest);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (int64_t j = 0; j < tokens; ++j) {
    const cuda::Bfloat16* value = call.values + first + j * call.head_dim;
    for (int64_t i = 0; i < call.head_dim; ++i) output[i] += weights[j] / sum * cuda::unstored(value[i]);
  }
  for (int64_t i = 0; i < call.head_dim; ++i)
    call.output[head * call.head_dim + i] = cuda::stored<cuda::Bfloat16>(output[i]);
}

template <int64_t kMissing>
void attention(const AttentionCall& call, cuda::Stream) {
  for (int64_t head = 0; head < call.query_heads; ++head) attend_head(call, head, call.tokens - kMissing);
}

// Row r's entries, best first, behind the first `missing`, to indices + r * stride.
void rank(const TopCall& call, int64_t missing, int64_t stride) {
  for (int64_t row = 0; row < call.rows; ++row) {
    const float* scores = call.scores + row * call.cols;
    std::vector<int32_t> order(call.cols);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    std::copy_n(order.begin() + missing, call.k, call.indices + row * stride);
  }
}

template <int64_t kMissing>
void select_top(const TopCall& call, cuda::Stream) {
  rank(call, kMissing, call.k);
}

template <int64_t kMissing>
void rank_top(const TopCall& call, cuda::Stream) {
  rank(call, kMissing, call.cols);
}

}  // namespace

std::span<const KernelLibrary> kernel_libraries() {
  static const KernelLibrary kLibraries[] = {
      {"processor", "1", "F32", "F32", 0, attention<0>, select_top<0>, rank_top<0>},
      {"faulty", "1", "F32", "F32", kFaultyHeadDim, attention<1>, select_top<1>, rank_top<0>}};
  return kLibraries;
}

}  // namespace kvbound::sim
