#include "touched_sectors.hpp"

#include <algorithm>
#include <bit>

#include <kvbound/cuda/emulation/memory.hpp>

namespace kvbound::cuda::counting {
namespace {

constexpr uintptr_t kSectorBytes = 32;
constexpr size_t kWordBits = 64;

double bytes_of(const std::vector<std::atomic<uint64_t>>& bits) {
  int64_t sectors = 0;
  for (const std::atomic<uint64_t>& word : bits)
    sectors += std::popcount(word.load(std::memory_order_relaxed));
  return static_cast<double>(sectors) * kSectorBytes;
}

}  // namespace

TouchedSectors::TouchedSectors() {
  size_t sectors = 0;
  for (const std::span<std::byte> buffer : emulation::device_buffers()) {
    const auto begin = reinterpret_cast<uintptr_t>(buffer.data());
    buffers_.push_back({begin, begin + buffer.size(), sectors});
    sectors += buffer.size() / kSectorBytes + 1;
  }
  read_ = Bits(sectors / kWordBits + 1);
  written_ = Bits(sectors / kWordBits + 1);
}

const TouchedSectors::Buffer* TouchedSectors::buffer_of(uintptr_t address) const {
  const auto next = std::ranges::upper_bound(buffers_, address, {}, &Buffer::begin);
  if (next == buffers_.begin() || address >= next[-1].end) return nullptr;
  return &next[-1];
}

void TouchedSectors::touch(uintptr_t address, int64_t bytes, bool writes) {
  const Buffer* const buffer = buffer_of(address);
  if (buffer == nullptr || bytes <= 0) return;
  Bits& bits = writes ? written_ : read_;
  const size_t first = buffer->first_sector + (address - buffer->begin) / kSectorBytes;
  const size_t last =
      buffer->first_sector + (address + static_cast<uintptr_t>(bytes) - 1 - buffer->begin) / kSectorBytes;
  for (size_t sector = first; sector <= last; ++sector) {
    std::atomic<uint64_t>& word = bits[sector / kWordBits];
    const uint64_t bit = uint64_t{1} << sector % kWordBits;
    if ((word.load(std::memory_order_relaxed) & bit) == 0) word.fetch_or(bit, std::memory_order_relaxed);
  }
}

TouchedBytes TouchedSectors::bytes() const { return {bytes_of(read_), bytes_of(written_)}; }

}  // namespace kvbound::cuda::counting
