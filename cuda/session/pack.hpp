// Packs stretches of device memory into one, so that they cross to the host in one transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <kvbound/cuda/support/device.hpp>

namespace kvbound::cuda {

/// Bytes of device memory, and where they are packed.
struct PackedStretch {
  const void* from = nullptr;  ///< on 16 bytes
  int64_t bytes = 0;
  int64_t to = 0;  ///< from the begin of the packed memory, a multiple of 16
};

inline namespace KVBOUND_CUDA_BUILD {

/// Copies every stretch to its place; gaps between them are left as they are. Copies bits.
///
/// packed  `bytes` bytes, on 16 bytes, not the memory of a stretch
/// throws  ShapeMismatch; DeviceError
void pack(std::span<const PackedStretch> stretches, std::byte* packed, int64_t bytes, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
