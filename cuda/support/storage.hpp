// The types in which a cache's numbers are stored on a device. Arithmetic is never done in them.
#pragma once

#include <cstdint>
#include <type_traits>

#include <kvbound/reference/core/dtype.hpp>

namespace kvbound::cuda {

/// IEEE binary16.
struct Float16 {
  uint16_t bits = 0;
};

/// The upper half of a binary32.
struct Bfloat16 {
  uint16_t bits = 0;
};

template <class T>
concept Storage = std::is_same_v<T, float> || std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

template <Storage T>
inline constexpr Dtype dtype_of = std::is_same_v<T, float>     ? Dtype::f32
                                  : std::is_same_v<T, Float16> ? Dtype::f16
                                                               : Dtype::bf16;

/// Numbers in 16 bytes, the width of one load.
template <Storage T>
inline constexpr int64_t kVector = 16 / static_cast<int64_t>(sizeof(T));

/// The length of a row of `cols` numbers in device memory, rounded up to whole loads of 16 bytes.
template <Storage T>
constexpr int64_t padded(int64_t cols) {
  return (cols + kVector<T> - 1) / kVector<T> * kVector<T>;
}

}  // namespace kvbound::cuda
