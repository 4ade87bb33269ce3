// Tensors for load_box (tensor_load.hpp): the host describes one, and the box of it that a copy takes, in a
// map that a kernel takes as `const __grid_constant__ TensorMap map`.
//
// source  CUDA driver API, cuTensorMapEncodeTiled
#pragma once

#include <kvbound/cuda/support/tensor_tile.hpp>

#include "kernel.hpp"

#ifdef KVBOUND_CUDA_NATIVE
#include <cuda.h>
#else
#include <kvbound/cuda/emulation/tensor_map.hpp>
#endif

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

#ifdef KVBOUND_CUDA_NATIVE
using TensorMap = CUtensorMap;
namespace detail {
TensorMap encode_tensor_map(CUtensorMapDataType type, const void* data, int64_t bytes_of_number,
                            const TensorTile& tile, CallSite where);
}
#else
using TensorMap = emulation::TensorMap;
#endif

/// The map of a tensor that begins at `data` in device memory.
/// throws  ShapeMismatch if TMA cannot copy such boxes (require_copyable); DeviceError if the driver refuses
///         the map, or emulated, if the tensor does not lie in one buffer
template <Storage T>
TensorMap tensor_map(const T* data, const TensorTile& tile, CallSite where = CallSite::current()) {
#ifdef KVBOUND_CUDA_NATIVE
  constexpr CUtensorMapDataType kType = std::is_same_v<T, float>     ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                        : std::is_same_v<T, Float16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return detail::encode_tensor_map(kType, data, sizeof(T), tile, where);
#else
  return emulation::encode_tensor_map(data, sizeof(T), tile, where);
#endif
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
