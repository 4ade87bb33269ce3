// Random arguments of device operations. Compiled twice, as device_bench.cpp is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>

#include "bench_layer.hpp"
#include "device_measure.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {

/// Scores distributed as after a softmax: most are nearly 0, and a few hold almost all of the sum.
std::vector<float> random_scores(int64_t count, const traces::Stream& random);
/// Normal numbers.
std::vector<float> random_numbers(int64_t count, const traces::Stream& random);

/// Numbers in device memory.
template <class T>
cuda::Buffer<T> uploaded(const std::vector<T>& numbers) {
  return cuda::Buffer<T>(std::span<const T>(numbers));
}
template <class T>
cuda::Buffer<T> uploaded(int64_t count, T number) {
  return uploaded(std::vector<T>(count, number));
}
inline cuda::DeviceMatrix uploaded(int64_t rows, int64_t cols, const std::vector<float>& numbers) {
  cuda::DeviceMatrix matrix(rows, cols);
  matrix.upload(numbers, kStream);
  return matrix;
}

/// Lists of positions, one for each KV head, all of one length.
struct Positions {
  Positions(int64_t heads, int64_t count) : lists(heads, count), counts(uploaded(heads, count)) {}

  cuda::PositionLists view() { return {lists.data(), counts.data(), lists.stride()}; }

  cuda::IndexLists lists;
  cuda::Buffer<int64_t> counts;
};

/// Random ascending positions of the 20 % kept, different for every KV head.
Positions random_kept(const BenchOptions& options);

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
