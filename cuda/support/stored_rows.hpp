// The host's doubles in the type that stores them.
#pragma once

#include <cstdint>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/view.hpp>

#include "build.hpp"
#include "storage.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Rows of numbers, and their bits if they were recorded as T: bits[i] are those of numbers.data[i].
template <Storage T>
struct HostRows {
  MatrixView numbers;
  const uint16_t* bits = nullptr;

  HostRows(MatrixView numbers_, Dtype dtype, const uint16_t* bits_)
      : numbers(numbers_), bits(dtype == dtype_of<T> && sizeof(T) == sizeof(uint16_t) ? bits_ : nullptr) {}
  HostRows middle(int64_t first, int64_t count) const {
    return {numbers.middle_rows(first, count), dtype_of<T>,
            bits ? bits + first * numbers.row_stride : nullptr};
  }
};

/// Writes rows one behind the other: numbers(r, c), rounded once, at to[r * padded<T>(cols) + c], and zeros
/// up to the next row.
template <Storage T>
void store_rows(const HostRows<T>& rows, T* to);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
