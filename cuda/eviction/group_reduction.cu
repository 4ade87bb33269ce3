#include "group_reduction.hpp"

#include <string>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/reference/core/error.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 128;

// The sum over a group's query heads, divided by `divisor`: a thread has one column.
//
// grid       (ceil(cols / 128), query_heads / group_size)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read: 4 query_heads cols; written: 4 query_heads / group_size cols
// FLOP       query_heads cols, and a division for each result
__global__ void __launch_bounds__(kThreads)
    reduce_group_kernel(const float* scores, int64_t cols, int64_t group_size, float divisor,
                        float* reduced) {
  const int64_t j = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (j >= cols) return;
  const int64_t g = blockIdx.y;
  float sum = 0;
  for (int64_t h = g * group_size; h < (g + 1) * group_size; ++h) sum += scores[h * cols + j];
  reduced[g * cols + j] = sum / divisor;
}

float divisor_of(GroupReduction reduction, int64_t group_size) {
  switch (reduction) {
    case GroupReduction::mean:
      return static_cast<float>(group_size);
    case GroupReduction::sum:
      return 1;
  }
  return 1;
}

}  // namespace

void reduce_group(const float* scores, int64_t query_heads, int64_t cols, int64_t group_size,
                  GroupReduction reduction, float* reduced, Stream stream) {
  if (group_size < 1 || query_heads % group_size != 0) {
    throw ShapeMismatch(std::to_string(query_heads) + " query heads cannot be shared out in groups of " +
                        std::to_string(group_size));
  }
  if (query_heads <= 0 || cols <= 0) return;
  launch<reduce_group_kernel>(
      {extent(ceil_division(cols, kThreads), query_heads / group_size), dim3(kThreads), 0, stream}, scores,
      cols, group_size, divisor_of(reduction, group_size), reduced);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
