#include "touched_sectors.hpp"

#include <algorithm>
#include <bit>

#include <kvbound/cuda/emulation/memory.hpp>

namespace kvbound::cuda::counting {
namespace {

constexpr size_t kWordBits = 64;

using Bits = std::vector<std::atomic<uint64_t>>;

// The sectors first, ..., first + count - 1 that are set, in bytes.
double bytes_of(const Bits& bits, size_t first, size_t count) {
  int64_t sectors = 0;
  for (size_t sector = first; sector < first + count;) {
    const size_t bit = sector % kWordBits;
    const size_t here = std::min(kWordBits - bit, first + count - sector);
    const uint64_t mask = (here == kWordBits ? ~uint64_t{0} : (uint64_t{1} << here) - 1) << bit;
    sectors += std::popcount(bits[sector / kWordBits].load(std::memory_order_relaxed) & mask);
    sector += here;
  }
  return static_cast<double>(sectors) * kSectorBytes;
}

}  // namespace

TouchedSectors::TouchedSectors() {
  size_t sectors = 0;
  for (const std::span<std::byte> buffer : emulation::device_buffers()) {
    const auto begin = reinterpret_cast<uintptr_t>(buffer.data());
    const size_t own = (buffer.size() + kSectorBytes - 1) / kSectorBytes;
    buffers_.push_back({begin, begin + buffer.size(), sectors, own});
    sectors += own;
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

TouchedBytes TouchedSectors::bytes() const {
  TouchedBytes all;
  for (const OfBuffer& one : by_buffer()) {
    all.read += one.touched.read;
    all.written += one.touched.written;
  }
  return all;
}

std::vector<TouchedSectors::OfBuffer> TouchedSectors::by_buffer() const {
  std::vector<OfBuffer> all;
  for (const Buffer& buffer : buffers_) {
    all.push_back({{bytes_of(read_, buffer.first_sector, buffer.sectors),
                    bytes_of(written_, buffer.first_sector, buffer.sectors)},
                   static_cast<double>(buffer.sectors) * kSectorBytes});
  }
  return all;
}

}  // namespace kvbound::cuda::counting
