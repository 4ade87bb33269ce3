// Numbers of the library as arrays of NumPy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::python {

/// An array that reads the memory of `owner`, and keeps it alive.
///
/// strides  in numbers; empty: in C order
template <class T>
nanobind::object array_of(const T* data, std::vector<size_t> shape, std::shared_ptr<const void> owner,
                          const std::vector<int64_t>& strides = {}) {
  using Owner = std::shared_ptr<const void>;
  const nanobind::capsule keeps(new Owner(std::move(owner)),
                                [](void* kept) noexcept { delete static_cast<Owner*>(kept); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, const T>(
      data, shape.size(), shape.data(), keeps, strides.empty() ? nullptr : strides.data()));
}
/// [slices, rows, cols]
inline nanobind::object array_of(const TensorView& view, std::shared_ptr<const void> owner) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  return array_of(view.data, {size(view.slices), size(view.rows), size(view.cols)}, std::move(owner),
                  {view.slice_stride, view.cols, 1});
}
/// An array that owns its numbers.
template <class T>
nanobind::object array_of(std::vector<T> numbers, std::vector<size_t> shape) {
  const auto owner = std::make_shared<const std::vector<T>>(std::move(numbers));
  return array_of(owner->data(), std::move(shape), owner);
}
template <class T>
nanobind::object array_of(std::vector<T> numbers) {
  const size_t size = numbers.size();
  return array_of(std::move(numbers), {size});
}
/// [rows, cols], copied.
inline nanobind::object copy_of(const MatrixView& view) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < view.rows; ++i)
    numbers.insert(numbers.end(), view.row(i).begin(), view.row(i).end());
  return array_of(std::move(numbers), {static_cast<size_t>(view.rows), static_cast<size_t>(view.cols)});
}

}  // namespace kvbound::python
