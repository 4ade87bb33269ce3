#include "tensor_tile.hpp"

#include <string>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

void require_within(const char* what, int64_t number, int64_t least, int64_t most, int64_t unit = 1) {
  if (least <= number && number <= most && number % unit == 0) return;
  throw ShapeMismatch(std::string("a tensor map has ") + what + " " + std::to_string(number) + ", not " +
                      std::to_string(least) + ".." + std::to_string(most) +
                      (unit == 1 ? "" : " in multiples of " + std::to_string(unit)));
}

}  // namespace

void require_copyable(const TensorTile& tile, const void* data, int64_t bytes_of_number) {
  constexpr int64_t kUnit = 16;
  constexpr int64_t kMostExtent = int64_t{1} << 32, kMostStride = int64_t{1} << 40, kMostBox = 256;
  require_within("an address with last bits", static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % kUnit),
                 0, 0);
  for (const int64_t extent : tile.extents) require_within("an extent of", extent, 1, kMostExtent);
  for (const int64_t stride : tile.strides)
    require_within("a stride of", stride, kUnit, kMostStride - kUnit, kUnit);
  for (const int64_t length : tile.box) require_within("a box length of", length, 1, kMostBox);
  require_within("bytes in a box's row:", tile.box[0] * bytes_of_number, kSwizzleSpan, kSwizzleSpan);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
