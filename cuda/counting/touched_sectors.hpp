// Which sectors of device memory a launch has touched.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "kernel_counts.hpp"

namespace kvbound::cuda::counting {

/// Sectors of 32 bytes of the buffers that exist when it is made; for any number of threads.
class TouchedSectors {
 public:
  TouchedSectors();

  /// Whether the address lies in device memory.
  bool holds(uintptr_t address) const { return buffer_of(address) != nullptr; }
  void touch(uintptr_t address, int64_t bytes, bool writes);
  TouchedBytes bytes() const;

  /// Of each buffer.
  struct OfBuffer {
    TouchedBytes touched;
    double bytes;  ///< of the whole buffer, in whole sectors
  };
  std::vector<OfBuffer> by_buffer() const;

 private:
  struct Buffer {
    uintptr_t begin;
    uintptr_t end;
    size_t first_sector;  // number of its first sector
    size_t sectors;
  };
  using Bits = std::vector<std::atomic<uint64_t>>;

  const Buffer* buffer_of(uintptr_t address) const;

  std::vector<Buffer> buffers_;
  Bits read_, written_;
};

}  // namespace kvbound::cuda::counting
