#include "pack.hpp"

#include <algorithm>
#include <string>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kMostBlocks = 256;  // of one stretch
constexpr int kMost = 32;             // stretches of a launch

struct Stretches {
  PackedStretch each[kMost];
};

// grid       (blocks of the longest stretch, at most 256; stretches)
// block      128; no shared memory
// registers  32 (sm_90a and sm_80)
// bytes      read and written: those of all stretches; no FLOP
__global__ void pack_kernel(Stretches stretches, std::byte* packed) {
  begin_dependent_launch();
  const PackedStretch& own = stretches.each[blockIdx.y];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t vectors = own.bytes / kVectorBytes;
  const auto* const from = static_cast<const uint4*>(own.from);
  auto* const to = reinterpret_cast<uint4*>(packed + own.to);
  for (int64_t i = first; i < vectors; i += step) to[i] = from[i];
  const auto* const bytes = static_cast<const std::byte*>(own.from);
  for (int64_t i = vectors * kVectorBytes + first; i < own.bytes; i += step) packed[own.to + i] = bytes[i];
}

void require_stretch(const PackedStretch& stretch, int64_t bytes) {
  require_range("end of a stretch", stretch.to + stretch.bytes, stretch.to, bytes);
  if (reinterpret_cast<uintptr_t>(stretch.from) % kVectorBytes != 0 || stretch.to % kVectorBytes != 0) {
    throw ShapeMismatch("a stretch or its place does not begin on 16 bytes");
  }
}

}  // namespace

void pack(std::span<const PackedStretch> stretches, std::byte* packed, int64_t bytes, Stream stream) {
  for (const PackedStretch& stretch : stretches) require_stretch(stretch, bytes);
  while (!stretches.empty()) {
    const size_t count = std::min<size_t>(stretches.size(), kMost);
    Stretches own;
    std::ranges::copy(stretches.first(count), own.each);
    const int64_t longest =
        std::ranges::max(stretches.first(count), {}, &PackedStretch::bytes).bytes / kVectorBytes;
    const int64_t blocks = std::clamp<int64_t>(ceil_division(longest, kThreads), 1, kMostBlocks);
    launch_dependent<pack_kernel>({extent(blocks, static_cast<int64_t>(count)), extent(kThreads), 0, stream},
                                  own, packed);
    stretches = stretches.subspan(count);
  }
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
