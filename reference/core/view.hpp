// Views, which do not own their numbers, and arrays, which do. All are row-major (C order).
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace kvbound {

using VectorView = std::span<const double>;

/// rows x cols numbers, not owned; consecutive rows lie row_stride numbers apart.
template <class T>
struct BasicMatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  BasicMatrixView() = default;
  BasicMatrixView(T* data_, int64_t rows_, int64_t cols_) : BasicMatrixView(data_, rows_, cols_, cols_) {}
  BasicMatrixView(T* data_, int64_t rows_, int64_t cols_, int64_t row_stride_)
      : data(data_), rows(rows_), cols(cols_), row_stride(row_stride_) {}
  /// A view for writing converts to one for reading.
  template <class U>
  requires(std::is_same_v<T, const U>) BasicMatrixView(const BasicMatrixView<U>& other)
      : BasicMatrixView(other.data, other.rows, other.cols, other.row_stride) {}

  T& operator()(int64_t row, int64_t col) const {
    assert(0 <= row && row < rows && 0 <= col && col < cols);
    return data[row * row_stride + col];
  }
  std::span<T> row(int64_t index) const {
    assert(0 <= index && index < rows);
    return {data + index * row_stride, static_cast<size_t>(cols)};
  }
  /// Rows first, first + 1, ..., first + count - 1.
  BasicMatrixView middle_rows(int64_t first, int64_t count) const {
    assert(0 <= first && 0 <= count && first + count <= rows);
    return {data + first * row_stride, count, cols, row_stride};
  }
  /// Columns first, first + 1, ..., first + count - 1.
  BasicMatrixView middle_cols(int64_t first, int64_t count) const {
    assert(0 <= first && 0 <= count && first + count <= cols);
    return {data + first, rows, count, row_stride};
  }
};
using MatrixView = BasicMatrixView<const double>;
using MutableMatrixView = BasicMatrixView<double>;
using SingleMatrixView = BasicMatrixView<const float>;
using MutableSingleMatrixView = BasicMatrixView<float>;

/// slices x rows x cols numbers, not owned; consecutive slices lie slice_stride numbers apart.
struct TensorView {
  const double* data = nullptr;
  int64_t slices = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t slice_stride = 0;

  MatrixView slice(int64_t index) const {
    assert(0 <= index && index < slices);
    return {data + index * slice_stride, rows, cols};
  }
  /// The same slices, cut to rows first, first + 1, ..., first + count - 1 of each.
  TensorView middle_rows(int64_t first, int64_t count) const {
    assert(0 <= first && 0 <= count && first + count <= rows);
    return {data + first * cols, slices, count, cols, slice_stride};
  }
  /// Row `index` of every slice: [slices, cols].
  MatrixView row_of_slices(int64_t index) const {
    assert(0 <= index && index < rows);
    return {data + index * cols, slices, cols, slice_stride};
  }
};

namespace detail {

using Numbers = std::vector<double, NumberAllocator<double>>;

}  // namespace detail

/// A matrix that owns its numbers, zero at first.
class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols)
      : Matrix(rows, cols, detail::Numbers(static_cast<size_t>(rows) * static_cast<size_t>(cols), 0.0)) {}
  /// One whose numbers are all written before they are read: they have no value at first.
  static Matrix for_overwrite(int64_t rows, int64_t cols) {
    return {rows, cols, detail::Numbers(static_cast<size_t>(rows) * static_cast<size_t>(cols))};
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  double* data() { return numbers_.data(); }
  const double* data() const { return numbers_.data(); }
  VectorView numbers() const { return numbers_; }

  MutableMatrixView view() { return {numbers_.data(), rows_, cols_}; }
  MatrixView view() const { return {numbers_.data(), rows_, cols_}; }
  operator MatrixView() const { return view(); }

  double& operator()(int64_t row, int64_t col) { return view()(row, col); }
  double operator()(int64_t row, int64_t col) const { return view()(row, col); }
  std::span<double> row(int64_t index) { return view().row(index); }
  VectorView row(int64_t index) const { return view().row(index); }

  /// Adds one row below the others; the first row of an empty matrix sets its width.
  void append_row(VectorView row) {
    if (rows_ == 0) cols_ = std::ssize(row);
    assert(std::ssize(row) == cols_);
    numbers_.insert(numbers_.end(), row.begin(), row.end());
    ++rows_;
  }
  /// Makes room for so many rows of so many columns, of which none has to be moved when others are added.
  void reserve(int64_t rows, int64_t cols) {
    numbers_.reserve(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  }
  void drop_last_row() {
    assert(rows_ > 0);
    numbers_.resize(numbers_.size() - static_cast<size_t>(cols_));
    --rows_;
  }

 private:
  Matrix(int64_t rows, int64_t cols, detail::Numbers numbers)
      : rows_(rows), cols_(cols), numbers_(std::move(numbers)) {}

  int64_t rows_ = 0;
  int64_t cols_ = 0;
  detail::Numbers numbers_;
};

/// A [slices, rows, cols] array that owns its numbers, zero at first.
class Tensor {
 public:
  Tensor() = default;
  Tensor(int64_t slices, int64_t rows, int64_t cols)
      : slices_(slices),
        rows_(rows),
        cols_(cols),
        numbers_(static_cast<size_t>(slices) * static_cast<size_t>(rows) * static_cast<size_t>(cols), 0.0) {}
  /// One whose numbers are all written before they are read: they have no value at first.
  static Tensor for_overwrite(int64_t slices, int64_t rows, int64_t cols) {
    Tensor tensor;
    tensor.slices_ = slices;
    tensor.rows_ = rows;
    tensor.cols_ = cols;
    tensor.numbers_ =
        detail::Numbers(static_cast<size_t>(slices) * static_cast<size_t>(rows) * static_cast<size_t>(cols));
    return tensor;
  }

  double* data() { return numbers_.data(); }
  const double* data() const { return numbers_.data(); }
  VectorView numbers() const { return numbers_; }
  std::span<double> numbers() { return numbers_; }
  TensorView view() const { return {numbers_.data(), slices_, rows_, cols_, rows_ * cols_}; }
  operator TensorView() const { return view(); }
  MatrixView slice(int64_t index) const { return view().slice(index); }
  MutableMatrixView slice(int64_t index) {
    assert(0 <= index && index < slices_);
    return {numbers_.data() + index * rows_ * cols_, rows_, cols_};
  }

 private:
  int64_t slices_ = 0;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  detail::Numbers numbers_;
};

}  // namespace kvbound
