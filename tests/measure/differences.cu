#include "differences.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    count_differences_kernel(int64_t* numbers, const int64_t* expected, int64_t count, int* differences) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  if (numbers[i] != expected[i]) atomicAdd(differences, 1);
  numbers[i] = kUnwrittenNumber;
}

}  // namespace

void count_differences(int64_t* numbers, const int64_t* expected, int64_t count, int* differences,
                       Stream stream) {
  launch<count_differences_kernel>({extent(ceil_division(count, kThreads)), extent(kThreads), 0, stream},
                                   numbers, expected, count, differences);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
