// Shared by all parity tests: the device of the build under test, inputs that are rounded to device precision
// before both sides use them, and a comparator that refuses comparisons which prove nothing.
//
// A parity test is compiled once for each build (cuda/support/build.hpp) and uses
// only the namespace `cuda::`.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/support/storage.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/view.hpp>

#include "support/device_test.hpp"

namespace kvbound::parity {

using cuda::DeviceTest;

using StorageTypes = testing::Types<cuda::Bfloat16, cuda::Float16, float>;
using Storage16Types = testing::Types<cuda::Bfloat16, cuda::Float16>;

/// Names the instances of typed tests BF16, F16, F32.
struct StorageName {
  template <cuda::Storage T>
  static std::string GetName(int) {
    return std::string(name(cuda::dtype_of<T>));
  }
};

/// The number of type T nearest to this one, rounded once.
template <cuda::Storage T>
T stored(double number) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(number);
  } else {
    return {std::is_same_v<T, cuda::Float16> ? to_float16(number) : to_bfloat16(number)};
  }
}
inline double number(float stored) { return stored; }
inline double number(cuda::Float16 stored) { return from_float16(stored.bits); }
inline double number(cuda::Bfloat16 stored) { return from_bfloat16(stored.bits); }

/// The same tensor after storing it as T: the numbers that the device reads, for the
/// reference to compute with.
template <cuda::Storage T>
Tensor rounded(Tensor tensor) {
  for (double& entry : tensor.numbers()) entry = number(stored<T>(entry));
  return tensor;
}

/// Numbers that are roughly normal with standard deviation `size`, the same on every platform.
Tensor random_tensor(uint64_t seed, int64_t slices, int64_t rows, int64_t cols, double size = 1);

/// A tensor in device memory. Everything that an operation must not read is NaN: rows that are not in use,
/// and the gap behind the padding of each row. The padding itself is 0, as DeviceTensor requires.
template <cuda::Storage T>
class Uploaded {
 public:
  /// numbers   exact in T: rounded<T>(...)
  /// capacity  rows per slice; the ones behind numbers.rows are not in use
  /// used      how many rows of each slice are in use; empty: all of numbers
  explicit Uploaded(TensorView numbers, int64_t capacity = 0, std::span<const int64_t> used = {})
      : slices_(numbers.slices), rows_(std::max(numbers.rows, capacity)), cols_(numbers.cols) {
    std::vector<T> memory(slices_ * rows_ * row_stride(), nan());
    for (int64_t s = 0; s < slices_; ++s) {
      const int64_t in_use = used.empty() ? numbers.rows : used[s];
      for (int64_t i = 0; i < in_use; ++i) {
        T* const row = memory.data() + (s * rows_ + i) * row_stride();
        std::fill_n(row, cuda::padded<T>(cols_), T{});
        const VectorView from = numbers.slice(s).row(i);
        std::transform(from.begin(), from.end(), row, [](double entry) { return stored<T>(entry); });
      }
    }
    memory_ = cuda::Buffer<T>(std::span<const T>(memory));
  }

  cuda::DeviceTensor<const T> view() const {
    return {memory_.data(), slices_, rows_, cols_, row_stride(), rows_ * row_stride()};
  }

 private:
  static T nan() { return stored<T>(std::numeric_limits<double>::quiet_NaN()); }
  int64_t row_stride() const { return cuda::padded<T>(cols_) + cuda::kVector<T>; }

  int64_t slices_, rows_, cols_;
  cuda::Buffer<T> memory_;
};

/// Device memory that an operation fills with numbers. Numbers that it does not write stay recognisable NaNs,
/// and a write before or behind the memory is detected.
class Output {
 public:
  explicit Output(int64_t size);

  float* data() { return memory_.data() + kGuard; }
  /// Waits for the default stream; fails the test if the memory around the numbers was overwritten.
  std::vector<float> numbers() const;
  /// Whether this number has not been written since construction.
  static bool is_unwritten(float number);

 private:
  static constexpr int64_t kGuard = 64;

  cuda::Buffer<float> memory_;
};

/// Working memory of exactly `bytes` bytes, filled with NaN.
class WorkingMemory {
 public:
  explicit WorkingMemory(int64_t bytes);
  cuda::Workspace view() { return {memory_.data(), memory_.size()}; }

 private:
  cuda::Buffer<unsigned char> memory_;
};

/// Whether two results are the same to the last bit.
template <class T>
bool same_bits(const std::vector<T>& one, const std::vector<T>& other) {
  static_assert(std::is_trivially_copyable_v<T>);
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0);
}
template <class T>
bool same_bits(const std::vector<std::vector<T>>& one, const std::vector<std::vector<T>>& other) {
  return one.size() == other.size() &&
         std::equal(one.begin(), one.end(), other.begin(),
                    [](const auto& a, const auto& b) { return same_bits(a, b); });
}

/// Emulated: calls work(name) under each of three schedules with async copies landing early
/// and late. Native: twice.
void for_each_schedule(const std::function<void(const std::string& name)>& work);

/// Emulated: calls work(name) on devices that grant a block as much shared memory as those of compute
/// capability 9.0, 8.0 and 8.6 do, then on ever smaller ones until `work` throws ShapeMismatch; the test
/// fails if it never does. Native: once, on the GPU at hand.
void for_each_device(const std::function<void(const std::string& name)>& work);

/// Emulated: calls work on a device without clusters, of compute capability 8.0. Native: on the GPU at hand.
void without_clusters(const std::function<void()>& work);

/// Emulated: calls work where grids have so many rows along y and go on along z (extent_of_rows). Native:
/// with as many rows as a GPU takes along y.
void with_grid_rows(int64_t rows, const std::function<void()>& work);

/// Returns results(), a vector or a vector of vectors. The test fails if any schedule, or a second call under
/// the same schedule, gives other bits.
template <class Results>
auto in_every_schedule(const Results& results) {
  const auto first = results();
  for_each_schedule([&](const std::string& schedule) {
    EXPECT_TRUE(same_bits(results(), first)) << "other bits than at the first call, with " << schedule;
  });
  return first;
}

/// Compares an operation's results with the reference's and records how much of their error bounds they use.
class Comparator {
 public:
  explicit Comparator(std::string operation) : operation_(std::move(operation)) {}

  /// Succeeds if |actual - expected| <= bound element by element, and where infinity is expected, actual is
  /// the same infinity. Fails, because they would prove nothing, for: different sizes, no elements, a
  /// reference of zeros only, bounds that are negative, NaN, infinite or nowhere smaller than the value.
  /// NaN fails under any bound.
  testing::AssertionResult hold(std::span<const float> actual, VectorView expected, VectorView bounds);

  /// The median of bound / |actual - expected| over the elements compared so far, without results that have
  /// no error and without expectations below the normal range of fp32, whose bounds are about its smallest
  /// number. NaN if no element is left.
  double median_slack() const;

  /// Prints the median; fails unless it is below 1,000, since wider bounds would prove little.
  testing::AssertionResult is_tight() const;

 private:
  std::string operation_;
  std::vector<double> slack_;
  int64_t held_ = 0;
};

}  // namespace kvbound::parity
