// Else nvcc 13.0 refuses a request that needs clusters even where all architectures have them.
#define CUB_DISABLE_TOPK_UNSUPPORTED_ARCH_ASSERT

#include <cub/device/device_batched_topk.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>
#include <cub/version.cuh>
#include <cuda/argument>
#include <cuda/iterator>

#include <kvbound/cuda/native/check.hpp>

#include "cub.hpp"

namespace kvbound::sim {
namespace {

// CUB's calls are made twice: first with no memory, to learn how much they need.
template <class Call>
void run(const TopCall& top, const Call& call) {
  size_t bytes = 0;
  cuda::native::check(call(nullptr, bytes), "CUB's size of memory");
  if (static_cast<int64_t>(bytes) > top.workspace.bytes)
    throw ShapeMismatch("CUB needs a workspace of " + std::to_string(bytes) + " bytes");
  cuda::native::check(call(top.workspace.data, bytes), "CUB");
}

// Iterators to the rows of a matrix.
template <class T>
auto rows_of(T* matrix, int64_t stride) {
  return ::cuda::make_strided_iterator(::cuda::make_counting_iterator(matrix), stride);
}

}  // namespace

std::string cub_version() {
  return std::to_string(CUB_MAJOR_VERSION) + '.' + std::to_string(CUB_MINOR_VERSION) + '.' +
         std::to_string(CUB_SUBMINOR_VERSION);
}

void cub_select_top(const TopCall& call, cuda::Stream stream) {
  namespace execution = ::cuda::execution;
  constexpr int64_t kMostScores = 131072;
  const auto environment = ::cuda::std::execution::env{
      ::cuda::stream_ref{stream},
      execution::require(execution::determinism::gpu_to_gpu, execution::tie_break::prefer_smaller_index,
                         execution::output_ordering::unsorted)};
  const auto positions = ::cuda::make_constant_iterator(::cuda::make_counting_iterator(int32_t{0}));
  const ::cuda::args::immediate cols{call.cols, ::cuda::args::bounds<int64_t{1}, kMostScores>()};
  run(call, [&](void* memory, size_t& bytes) {
    return cub::DeviceBatchedTopK::MaxPairs(
        memory, bytes, rows_of(call.scores, call.cols), rows_of(call.values, call.k), positions,
        rows_of(call.indices, call.k), cols, call.k, call.rows, environment);
  });
}

void cub_rank_top(const TopCall& call, cuda::Stream stream) {
  const auto row_begins =
      ::cuda::make_strided_iterator(::cuda::make_counting_iterator(int64_t{0}), call.cols);
  run(call, [&](void* memory, size_t& bytes) {
    return cub::DeviceSegmentedRadixSort::SortPairsDescending(
        memory, bytes, call.scores, call.values, call.positions, call.indices, call.rows * call.cols,
        call.rows, row_begins, row_begins + 1, 0, 32, stream);
  });
}

}  // namespace kvbound::sim
