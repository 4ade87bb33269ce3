#include "queued_copies.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::cuda::emulation {
namespace {

// Of all bytes, by words of 64 bits of which each has a factor of its own.
uint64_t sum_of(const std::byte* memory, int64_t bytes) {
  uint64_t sum = 0, factor = 1;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, memory + i, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
    sum += word * (factor += 2);
  }
  return sum;
}

}  // namespace

QueuedCopies& QueuedCopies::of_thread() {
  static thread_local QueuedCopies copies;
  return copies;
}

void QueuedCopies::add_to_device(const void* from, int64_t bytes) {
  const auto* const memory = static_cast<const std::byte*>(from);
  waiting_.emplace_back(ToDevice{memory, bytes, sum_of(memory, bytes)});
}

void QueuedCopies::add_to_host(void* to, const void* from, int64_t bytes) {
  const auto* const memory = static_cast<const std::byte*>(from);
  waiting_.emplace_back(ToHost{to, {memory, memory + bytes}});
}

void QueuedCopies::complete(int64_t count) {
  int64_t changed = 0;  // bytes of the copies whose memory has changed
  while (completed_ < count && !waiting_.empty()) {
    const auto copy = std::move(waiting_.front());
    waiting_.pop_front();
    ++completed_;
    if (const auto* const arrives = std::get_if<ToHost>(&copy)) {
      std::memcpy(arrives->to, arrives->bytes.data(), arrives->bytes.size());
    } else if (const auto& left = std::get<ToDevice>(copy); sum_of(left.from, left.bytes) != left.sum) {
      changed += left.bytes;
    }
  }
  if (changed == 0) return;
  throw DeviceError("copy to the device",
                    std::to_string(changed) + " bytes of the host have changed before it was waited for",
                    __FILE__, __LINE__);
}

}  // namespace kvbound::cuda::emulation
