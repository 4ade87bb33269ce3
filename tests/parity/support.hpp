// What every parity test needs: the device of the build under test, inputs that are rounded before anybody computes with
// them, and a comparator that lets nothing pass that proves nothing.
//
// A parity test is compiled once for each build (cuda/support/build.hpp) and speaks of `cuda::` only.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/storage.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::parity {

/// A test of device operations: skipped where there is no device, or failed with KVBOUND_REQUIRE_GPU=1.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override;
};

using StorageTypes = testing::Types<cuda::Bfloat16, cuda::Float16, float>;

/// Names the instances of typed tests BF16, F16, F32.
struct StorageName {
  template <cuda::Storage T>
  static std::string GetName(int) {
    return std::string(name(cuda::dtype_of<T>));
  }
};

/// The stored number nearest to this one, by one rounding.
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

/// The same tensor after storing it as T: what the device sees, for the reference to compute with.
template <cuda::Storage T>
Tensor rounded(Tensor tensor) {
  for (double& entry : tensor.numbers()) entry = number(stored<T>(entry));
  return tensor;
}

/// size * nearly normal numbers, the same on every platform.
Tensor random_tensor(uint64_t seed, int64_t slices, int64_t rows, int64_t cols, double size = 1);

/// A tensor in device memory. Whatever an operation has no business to read is NaN: rows that are not in use, and the
/// gap behind the padding of each row. The padding itself is 0, as DeviceTensor demands.
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

/// Device memory that an operation fills with numbers. What it does not write stays NaN, recognisably, and it is noticed
/// if it writes before or behind them.
class Output {
 public:
  explicit Output(int64_t size);

  float* data() { return memory_.data() + kGuard; }
  /// Waits for the default stream; fails the test if the memory around was written to.
  std::vector<float> numbers() const;
  /// Whether this is what was there before anybody wrote.
  static bool is_unwritten(float number);

 private:
  static constexpr int64_t kGuard = 64;

  cuda::Buffer<float> memory_;
};

/// Working memory of exactly so many bytes, filled with NaN.
class WorkingMemory {
 public:
  explicit WorkingMemory(int64_t bytes);
  cuda::Workspace view() { return {memory_.data(), memory_.size()}; }

 private:
  cuda::Buffer<unsigned char> memory_;
};

/// Two results that are the same to the last bit.
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

/// Emulated: calls work(name) under each of three schedules with async copies landing early and late. Native: twice.
void for_each_schedule(const std::function<void(const std::string& name)>& work);

/// Emulated: calls work(name) on devices that grant a block as much shared memory as those of compute capability 9.0, 8.0
/// and 8.6 do, then ever less until `work` throws ShapeMismatch; it fails the test if that never comes. Native: once, on the
/// device that there is.
void for_each_device(const std::function<void(const std::string& name)>& work);

/// What `results()` gives, a vector or a vector of vectors. The test fails if it is not the same bits under every
/// schedule, and for a second call under the same one.
template <class Results>
auto in_every_schedule(const Results& results) {
  const auto first = results();
  for_each_schedule([&](const std::string& schedule) {
    EXPECT_TRUE(same_bits(results(), first)) << "other bits than at the first call, with " << schedule;
  });
  return first;
}

/// Holds an operation's results to the reference's and keeps count of how much of their bounds they use.
class Comparator {
 public:
  explicit Comparator(std::string operation) : operation_(std::move(operation)) {}

  /// |actual - expected| <= bound, element by element; where infinity is expected, the same infinity. Refused, because
  /// they prove nothing: different sizes, no elements, a reference of zeros only, bounds that are negative, NaN,
  /// infinite or nowhere smaller than the value. NaN fails under any bound.
  testing::AssertionResult hold(std::span<const float> actual, VectorView expected, VectorView bounds);

  /// The median of bound / |actual - expected| over the elements held so far. Left out are results without any error and
  /// expectations below the normal range of fp32, whose bounds are of the size of its smallest number. NaN if none are
  /// left.
  double median_slack() const;

  /// Prints the median; a failure unless it is below 1,000, that is, unless the bounds say something.
  testing::AssertionResult is_tight() const;

 private:
  std::string operation_;
  std::vector<double> slack_;
  int64_t held_ = 0;
};

}  // namespace kvbound::parity
