// Tiles of tokens: rows of keys or values in shared memory, as vectors of 16 bytes.
#pragma once

#include <kvbound/cuda/support/view.hpp>

#include "async_copy.hpp"
#include "kernel.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Tokens in a tile.
inline constexpr int kTileTokens = 64;

/// Vectors from one row of a tile to the next: an odd number, so that eight threads that read the same vector
/// of eight successive rows read from different banks.
__host__ __device__ constexpr int tile_row_vectors(int vectors) { return vectors | 1; }
__host__ __device__ constexpr int tile_vectors(int vectors) {
  return kTileTokens * tile_row_vectors(vectors);
}

/// The smallest power of two that is not below `number`, at most `most`.
__host__ __device__ constexpr int power_of_two_above(int number, int most) {
  int power = 1;
  while (power < number && power < most) power *= 2;
  return power;
}

/// The numbers in 16 bytes.
template <Storage T>
__device__ inline void unpack(const uint4& vector, float (&numbers)[kVector<T>]) {
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      numbers[i] = __uint_as_float(words[i]);
    } else {
      numbers[2 * i] = to_float(T{static_cast<uint16_t>(words[i])});
      numbers[2 * i + 1] = to_float(T{static_cast<uint16_t>(words[i] >> 16)});
    }
  }
}

/// Rows of one slice of a tensor, as vectors of 16 bytes.
struct TokenRows {
  const uint4* data;
  int64_t stride;  ///< vectors from row to row
  int vectors;     ///< of a row, padding included

  template <Storage T>
  __host__ __device__ TokenRows(const DeviceTensor<const T>& tensor, int64_t slice)
      : data(reinterpret_cast<const uint4*>(tensor.data + slice * tensor.slice_stride)),
        stride(tensor.row_stride / kVector<T>),
        vectors(static_cast<int>((tensor.cols + kVector<T> - 1) / kVector<T>)) {}
  __host__ __device__ TokenRows(const uint4* first, int64_t row_stride, int row_vectors)
      : data(first), stride(row_stride), vectors(row_vectors) {}

  /// Starts to copy rows first..first + count - 1 to a tile; count <= kTileTokens. All threads of the block
  /// call it; their number is a power of two >= 64.
  __device__ void copy_to_tile(int64_t first, int count, uint4* tile) const {
    const int columns = power_of_two_above(vectors, 64);
    const int column = static_cast<int>(threadIdx.x) % columns;
    if (column >= vectors) return;
    const int step = static_cast<int>(blockDim.x) / columns;
    for (int row = static_cast<int>(threadIdx.x) / columns; row < count; row += step) {
      async_copy16(tile + row * tile_row_vectors(vectors) + column, data + (first + row) * stride + column);
    }
  }
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
