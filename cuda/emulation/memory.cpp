#include "memory.hpp"

#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "sanitizer.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr size_t kAlignment = 256;
using Word [[gnu::may_alias]] = uint64_t;
constexpr Word kCanaryWord = 0x7fff7fff7fff7fff;

unsigned char canary_at(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 2 == 0 ? 0xff : 0x7f;
}

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Pages with guards on either side, at whose end a buffer is.
struct Mapping {
  std::byte* begin;
  size_t bytes;

  std::byte* first() const { return begin + kGuard; }
  std::byte* past_last() const { return begin + bytes - kGuard; }
};

struct Area {
  Mapping mapping;
  std::byte* data;
  size_t bytes;

  // Of the pages that are accessible.
  std::byte* first() const { return past_last() - round_up(round_up(bytes, kAlignment), kPage); }
  std::byte* past_data() const { return data + bytes; }
  std::byte* past_last() const { return mapping.past_last(); }
};

std::string offset_from(const Area& area, const std::byte* place) {
  const std::string buffer = " a buffer of " + std::to_string(area.bytes) + " bytes";
  if (place < area.data) return std::to_string(area.data - place) + " bytes before the begin of" + buffer;
  if (place >= area.past_data()) {
    return std::to_string(place - area.past_data()) + " bytes past the end of" + buffer;
  }
  return "byte " + std::to_string(place - area.data) + " of" + buffer;
}

// Describes an overwritten canary and restores it, so that it is reported once.
std::optional<std::string> overwritten(const Area& area) {
  std::optional<std::string> report;
  const auto check = [&](std::byte* from, std::byte* to) {
    const int64_t offset = overwritten_byte(from, static_cast<size_t>(to - from));
    if (offset < 0) return;
    report = "something was written " + offset_from(area, from + offset);
    allow(from, static_cast<size_t>(to - from));
    write_canaries(from, static_cast<size_t>(to - from));
    forbid(from, static_cast<size_t>(to - from));
  };
  check(area.first(), area.data);
  check(area.past_data(), area.past_last());
  return report;
}

// All allocated buffers, by their address.
class Areas {
 public:
  void insert(const Area& area) {
    const std::lock_guard lock(mutex_);
    areas_.emplace(reinterpret_cast<uintptr_t>(area.data), area);
  }

  std::optional<Area> remove(const void* data) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = areas_.find(reinterpret_cast<uintptr_t>(data));
    if (found == areas_.end()) return std::nullopt;
    const Area area = found->second;
    areas_.erase(found);
    if (auto report = overwritten(area); report && !remembered_) remembered_ = std::move(report);
    return area;
  }

  void set_aside(const Mapping& mapping) {
    const std::lock_guard lock(mutex_);
    set_aside_.emplace(mapping.begin, mapping);
  }
  std::optional<Mapping> take(void* begin) {
    const std::lock_guard lock(mutex_);
    const auto node = set_aside_.extract(static_cast<std::byte*>(begin));
    return node ? std::optional(node.mapped()) : std::nullopt;
  }

  std::optional<std::string> overwritten_canaries() {
    const std::lock_guard lock(mutex_);
    std::optional<std::string> report = std::exchange(remembered_, std::nullopt);
    for (const auto& [address, area] : areas_) {
      if (auto one = overwritten(area); one && !report) report = std::move(one);
    }
    return report;
  }

  std::vector<std::span<std::byte>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::span<std::byte>> buffers;
    for (const auto& [address, area] : areas_) buffers.emplace_back(area.data, area.bytes);
    return buffers;
  }

  // The buffer whose mapping contains the address, guard pages included.
  std::optional<Area> around(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto place = reinterpret_cast<uintptr_t>(address);
    auto next = areas_.upper_bound(place);
    for (int candidates = 0; candidates < 2; ++candidates) {
      if (next != areas_.end()) {
        const auto begin = reinterpret_cast<uintptr_t>(next->second.mapping.begin);
        if (begin <= place && place < begin + next->second.mapping.bytes) return next->second;
      }
      if (next == areas_.begin()) break;
      --next;
    }
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, Area> areas_;
  std::map<std::byte*, Mapping> set_aside_;  // by their begin
  std::optional<std::string> remembered_;
};

std::atomic<std::byte> fill = kNan;

Areas& areas() {
  static Areas* const all = new Areas;  // lives as long as any static buffer may
  return *all;
}

// A buffer of so many bytes at the end of a mapping of which nothing is accessible; releases it on failure.
void* open_buffer(const Mapping& mapping, size_t bytes) {
  const Area area{mapping, mapping.past_last() - round_up(bytes, kAlignment), bytes};
  const auto accessible = static_cast<size_t>(area.past_last() - area.first());
  if (mprotect(area.first(), accessible, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping.begin, mapping.bytes);
    throw std::bad_alloc();
  }
  std::memset(area.data, std::to_integer<int>(fill.load()), bytes);
  for (const auto& [from, to] : {std::pair(area.first(), area.data), {area.past_data(), area.past_last()}}) {
    write_canaries(from, static_cast<size_t>(to - from));
    forbid(from, static_cast<size_t>(to - from));
  }
  areas().insert(area);
  return area.data;
}

}  // namespace

void* allocate_device_memory(size_t bytes, size_t room) {
  const size_t most = round_up(std::max(bytes, room), kPage);
  if (most < bytes || most > PTRDIFF_MAX - 4 * kGuard) throw std::bad_alloc();
  const size_t mapped_bytes = most + 2 * kGuard;
  void* memory = mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return open_buffer({static_cast<std::byte*>(memory), mapped_bytes}, bytes);
}

void* set_aside_device_memory(void* memory) noexcept {
  const std::optional<Area> area = areas().remove(memory);
  if (!area) return nullptr;
  const size_t bytes = area->mapping.bytes - 2 * kGuard;
  allow(area->mapping.first(), bytes);
  mprotect(area->mapping.first(), bytes, PROT_NONE);
  madvise(area->mapping.first(), bytes, MADV_DONTNEED);
  areas().set_aside(area->mapping);
  return area->mapping.begin;
}

void* renew_device_memory(void* set_aside, size_t bytes) {
  const std::optional<Mapping> mapping = areas().take(set_aside);
  if (!mapping) throw std::bad_alloc();
  return open_buffer(*mapping, bytes);
}

void release_device_memory(void* memory) noexcept {
  if (const std::optional<Area> area = areas().remove(memory)) {
    allow(area->mapping.first(), area->mapping.bytes - 2 * kGuard);
    munmap(area->mapping.begin, area->mapping.bytes);
  } else if (const std::optional<Mapping> mapping = areas().take(memory)) {
    munmap(mapping->begin, mapping->bytes);
  }
}

std::vector<std::span<std::byte>> device_buffers() { return areas().all(); }

void fill_new_buffers_with(std::byte each) { fill = each; }

std::optional<std::string> overwritten_canaries() { return areas().overwritten_canaries(); }

bool is_device_memory(const void* memory, size_t bytes) {
  const std::optional<Area> area = areas().around(memory);
  const auto* const begin = static_cast<const std::byte*>(memory);
  return area && area->data <= begin && begin <= area->past_data() &&
         bytes <= static_cast<size_t>(area->past_data() - begin);
}

std::string place_in_device_memory(const void* address) {
  if (const std::optional<Area> area = areas().around(address)) {
    return offset_from(*area, static_cast<const std::byte*>(address));
  }
  return "far from all device memory";
}

void write_canaries(void* memory, size_t bytes) {
  auto* const to = static_cast<unsigned char*>(memory);
  for (size_t i = 0; i < bytes; ++i) to[i] = canary_at(to + i);
}

// Reads poisoned memory, and so is not instrumented by AddressSanitizer.
__attribute__((no_sanitize("address"))) int64_t overwritten_byte(const void* memory, size_t bytes) {
  const auto* const from = static_cast<const unsigned char*>(memory);
  size_t i = 0;
  const auto look = [&](size_t end) __attribute__((no_sanitize("address"))) {
    while (i < end && from[i] == canary_at(from + i)) ++i;
    return i < end;
  };
  const size_t until_aligned = (8 - reinterpret_cast<uintptr_t>(from) % 8) % 8;
  if (look(std::min(until_aligned, bytes))) return static_cast<int64_t>(i);
  while (i + 8 <= bytes && *reinterpret_cast<const Word*>(from + i) == kCanaryWord) i += 8;
  return look(bytes) ? static_cast<int64_t>(i) : -1;
}

}  // namespace kvbound::cuda::emulation
