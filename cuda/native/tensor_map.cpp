#include <kvbound/cuda/primitives/tensor_map.hpp>

#include <cuda_runtime.h>
#include <string>
#include <vector>

#include "check.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: programs are not linked with the driver's library, which a
// machine without a GPU lacks.
Encode encode_tiled(CallSite where) {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(kName, &function, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion", where);
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw DeviceError(kName, "the driver does not have it", where.file, where.line);
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

namespace detail {

TensorMap encode_tensor_map(CUtensorMapDataType type, const void* data, int64_t bytes_of_number,
                            const TensorTile& tile, CallSite where) {
  require_copyable(tile, data, bytes_of_number);
  const std::vector<cuuint64_t> extents(tile.extents.begin(), tile.extents.end());
  const std::vector<cuuint64_t> strides(tile.strides.begin(), tile.strides.end());
  const std::vector<cuuint32_t> box(tile.box.begin(), tile.box.end());
  const std::vector<cuuint32_t> every(extents.size(), 1);
  TensorMap map{};
  const CUresult result = encode_tiled(where)(
      &map, type, static_cast<cuuint32_t>(extents.size()), const_cast<void*>(data), extents.data(),
      strides.data(), box.data(), every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw DeviceError("cuTensorMapEncodeTiled", "error " + std::to_string(static_cast<int>(result)),
                      where.file, where.line);
  }
  return map;
}

}  // namespace detail

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
