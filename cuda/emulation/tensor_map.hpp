// Copies of a tensor's boxes to shared memory (TMA) in the emulation.
#pragma once

#include <cstddef>
#include <cstdint>

#include <kvbound/cuda/support/tensor_tile.hpp>

#include "block.hpp"

namespace kvbound::cuda::emulation {

/// What a tensor map says.
struct TensorMap {
  const std::byte* data;
  int64_t bytes_of_number;
  int64_t extents[3];
  int64_t strides[3];  ///< bytes; the first is bytes_of_number
  int64_t box[3];
};

/// Throws ShapeMismatch as require_copyable does, and DeviceError if the tensor does not lie in one buffer.
TensorMap encode_tensor_map(const void* data, int64_t bytes_of_number, const TensorTile& tile,
                            CallSite where);

/// Begins to copy the box whose first number has these coordinates, numbers outside the tensor as zeros.
void load_box(void* shared, const TensorMap& map, uint64_t* barrier, const int (&first)[3], CallSite where);

}  // namespace kvbound::cuda::emulation
