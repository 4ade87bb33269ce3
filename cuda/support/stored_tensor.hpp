// The host's doubles in device memory, rounded to a cache's storage type, and the device's
// single-precision results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/core/view.hpp>

#include "device.hpp"
#include "stored_rows.hpp"
#include "view.hpp"

namespace kvbound::cuda {

/// A number in its storage type, rounded once.
template <Storage T>
T stored(double number) {
  if constexpr (std::is_same_v<T, Float16>) {
    return {to_float16(number)};
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return {to_bfloat16(number)};
  } else {
    return static_cast<float>(number);
  }
}

/// A stored number, exactly.
inline double unstored(float number) { return number; }
inline double unstored(Float16 number) { return from_float16(number.bits); }
inline double unstored(Bfloat16 number) { return from_bfloat16(number.bits); }

inline namespace KVBOUND_CUDA_BUILD {

/// A [slices, rows, cols] array in device memory, its rows padded with zeros.
template <Storage T>
class StoredTensor {
 public:
  StoredTensor() = default;
  StoredTensor(int64_t slices, int64_t rows, int64_t cols)
      : slices_(slices), rows_(rows), cols_(cols), numbers_(slices * slice_stride()) {}
  StoredTensor(TensorView tensor, Stream stream, Dtype dtype = Dtype::f64, const uint16_t* bits = nullptr)
      : StoredTensor(tensor.slices, tensor.rows, tensor.cols) {
    assign(tensor, stream, dtype, bits);
  }

  /// From a tensor of the same shape, and its bits if they are known.
  void assign(TensorView tensor, Stream stream, Dtype dtype = Dtype::f64, const uint16_t* bits = nullptr) {
    const auto write = [&](int64_t row, int64_t count, T* to) {
      for (int64_t now = 0; count > 0; row += now, count -= now, to += now * padded<T>(cols_)) {
        const int64_t slice = row / rows_, first = row % rows_;
        now = std::min(count, rows_ - first);
        const uint16_t* const own = bits ? bits + slice * tensor.slice_stride : nullptr;
        store_rows(HostRows<T>(tensor.slice(slice), dtype, own).middle(first, now), to);
      }
    };
    numbers_.upload_rows(slices_ * rows_, padded<T>(cols_), write, stream);
  }
  /// A tensor of one slice, from a matrix whose rows may have a stride.
  void assign(MatrixView matrix, Stream stream) {
    const HostRows<T> rows(matrix, Dtype::f64, nullptr);
    numbers_.upload_rows(
        rows_, padded<T>(cols_),
        [&rows](int64_t row, int64_t count, T* to) { store_rows(rows.middle(row, count), to); }, stream);
  }

  int64_t rows() const { return rows_; }
  bool empty() const { return numbers_.size() == 0; }
  /// [slices, rows, padded<T>(cols)]
  const Buffer<T>& numbers() const { return numbers_; }
  DeviceTensor<T> view() {
    return {numbers_.data(), slices_, rows_, cols_, padded<T>(cols_), slice_stride()};
  }
  DeviceTensor<const T> view() const {
    return {numbers_.data(), slices_, rows_, cols_, padded<T>(cols_), slice_stride()};
  }

 private:
  int64_t slice_stride() const { return rows_ * padded<T>(cols_); }

  int64_t slices_ = 0;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  Buffer<T> numbers_;
};

/// [rows, cols] results in device memory, without gaps.
class DeviceMatrix {
 public:
  DeviceMatrix() = default;
  DeviceMatrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols), numbers_(rows * cols) {}

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  float* data() { return numbers_.data(); }
  const float* data() const { return numbers_.data(); }

  void clear(Stream stream) { numbers_.clear(stream); }
  /// Copies numbers to the first places, row by row.
  void upload(std::span<const float> numbers, Stream stream) { numbers_.upload(numbers, stream); }
  /// Copies numbers to a row, from column `first` on.
  void upload(int64_t row, int64_t first, std::span<const float> numbers, Stream stream) {
    numbers_.upload(numbers, stream, row * cols_ + first);
  }
  const Buffer<float>& numbers() const { return numbers_; }

 private:
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  Buffer<float> numbers_;
};

/// Lists of indices in device memory, one per KV head.
class IndexLists {
 public:
  IndexLists() = default;
  IndexLists(int64_t heads, int64_t longest)
      : stride_(std::max<int64_t>(longest, 1)), indices_(heads * stride_) {}

  int64_t stride() const { return stride_; }
  int64_t* data() { return indices_.data(); }
  const int64_t* data() const { return indices_.data(); }

  /// Writes `list` into head g's at `first`.
  void upload(int64_t head, int64_t first, std::span<const int64_t> list, Stream stream) {
    indices_.upload(list, stream, head * stride_ + first);
  }
  /// [heads, stride]
  const Buffer<int64_t>& indices() const { return indices_; }

 private:
  int64_t stride_ = 1;
  Buffer<int64_t> indices_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
