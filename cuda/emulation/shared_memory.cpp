#include "shared_memory.hpp"

#include <sys/mman.h>
#include <cstring>
#include <new>

#include "block.hpp"
#include "memory.hpp"
#include "sanitizer.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr size_t kGap = 1024;
constexpr size_t kMostArrays = 64;
// An array's alignment may take as many bytes as its gap.
constexpr size_t kRoom = (static_cast<size_t>(kMostSharedMemory) + 2 * kGap * kMostArrays) / kPage * kPage;

std::byte* round_up(std::byte* address, int64_t alignment) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  const auto unit = static_cast<uintptr_t>(alignment);
  return address + ((place + unit - 1) / unit * unit - place);
}

}  // namespace

SharedArena::SharedArena() {
  void* memory =
      mmap(nullptr, kRoom + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mapped_ = static_cast<std::byte*>(memory);
  first_ = mapped_ + kGuard;
  past_ = first_ + kRoom;
  if (mprotect(first_, kRoom, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped_, kRoom + 2 * kGuard);
    throw std::bad_alloc();
  }
}

SharedArena::~SharedArena() {
  allow(first_, kRoom);
  munmap(mapped_, kRoom + 2 * kGuard);
}

void SharedArena::restart(int64_t bytes) {
  open();
  viewed_ = false;
  arrays_.clear();
  granted_ = bytes;
  forbid(first_, kRoom);
}

// Pages can always be made accessible again, so these calls cannot fail.
void SharedArena::close(const char* why) {
  closed_ = why;
  mprotect(first_, kRoom, PROT_NONE);
}

void SharedArena::open() {
  if (closed_ != nullptr) mprotect(first_, kRoom, PROT_READ | PROT_WRITE);
  closed_ = nullptr;
}

void* SharedArena::array(int number, int64_t offset, int64_t bytes, int64_t alignment, std::string& problem) {
  const auto index = static_cast<size_t>(number);
  if (index < arrays_.size()) {
    const Array& known = arrays_[index];
    if (known.offset == offset && known.bytes == bytes) return known.data;
    problem = "lays out shared memory otherwise than another thread: array " + std::to_string(number) +
              " at byte " + std::to_string(offset) + " of " + std::to_string(bytes) +
              " bytes, there at byte " + std::to_string(known.offset) + " of " + std::to_string(known.bytes);
    return nullptr;
  }
  if (offset + bytes > granted_) {
    problem = "lays out " + std::to_string(offset + bytes) +
              " bytes of shared memory, but was launched with " + std::to_string(granted_);
    return nullptr;
  }
  if (arrays_.size() == kMostArrays || alignment > static_cast<int64_t>(kGap)) {
    problem = "lays out more than " + std::to_string(kMostArrays) + " arrays, or asks for an alignment of " +
              std::to_string(alignment);
    return nullptr;
  }
  std::byte* const data = round_up(arrays_.empty() ? first_ : arrays_.back().gap_end, alignment);
  std::byte* const past = data + bytes;
  std::byte* const gap_end = round_up(past + kGap, 16);
  allow(data, static_cast<size_t>(gap_end - data));
  std::memset(data, 0xff, static_cast<size_t>(bytes));
  write_canaries(past, static_cast<size_t>(gap_end - past));
  forbid(past, static_cast<size_t>(gap_end - past));
  if (viewed_) std::memset(view(data), 0xff, static_cast<size_t>(bytes));
  arrays_.push_back({offset, bytes, alignment, data, gap_end});
  return data;
}

const SharedArena::Array* SharedArena::array_around(const void* place) const {
  const auto* const begin = static_cast<const std::byte*>(place);
  for (const Array& array : arrays_) {
    if (array.data <= begin && begin < array.data + array.bytes) return &array;
  }
  return nullptr;
}

bool SharedArena::holds(const void* memory, int64_t bytes) const {
  const Array* const array = array_around(memory);
  return array != nullptr && bytes <= array->data + array->bytes - static_cast<const std::byte*>(memory);
}

void* SharedArena::same_place_in(SharedArena& other, const void* address, std::string& problem) const {
  const Array* const mine = array_around(address);
  if (mine == nullptr) {
    problem = "maps an address that is in no array of its shared memory";
    return nullptr;
  }
  const bool was_closed = other.closed_ != nullptr;
  const char* const why = other.closed_;
  other.open();
  std::byte* theirs = nullptr;
  for (size_t number = 0; number <= static_cast<size_t>(mine - arrays_.data()); ++number) {
    const Array& each = arrays_[number];
    theirs = static_cast<std::byte*>(
        other.array(static_cast<int>(number), each.offset, each.bytes, each.alignment, problem));
    if (theirs == nullptr) break;
  }
  if (was_closed) other.close(why);
  return theirs == nullptr ? nullptr : theirs + (static_cast<const std::byte*>(address) - mine->data);
}

int64_t SharedArena::address(const void* place) const {
  const Array* const array = array_around(place);
  return array == nullptr ? -1
                          : kBegin + array->offset + (static_cast<const std::byte*>(place) - array->data);
}

std::byte* SharedArena::place_of(int64_t address) const {
  const int64_t offset = address - kBegin;
  for (const Array& array : arrays_) {
    if (array.offset <= offset && offset < array.offset + array.bytes)
      return array.data + (offset - array.offset);
  }
  return nullptr;
}

void SharedArena::begin_view() {
  viewed_ = true;
  view_.resize(kRoom);
  for (const Array& array : arrays_) {
    std::memset(view_.data() + (array.data - first_), 0xff, static_cast<size_t>(array.bytes));
  }
}

std::byte* SharedArena::view(const std::byte* place) {
  if (!viewed_) begin_view();
  return view_.data() + (place - first_);
}

void SharedArena::publish() {
  for (const Array& array : arrays_)
    std::memcpy(view(array.data), array.data, static_cast<size_t>(array.bytes));
}

std::string SharedArena::beyond(const Array& array, const std::byte* place) const {
  const auto number = std::to_string(&array - arrays_.data());
  return std::to_string(place - (array.data + array.bytes)) + " bytes past the end of shared array " +
         number + " of " + std::to_string(array.bytes) + " bytes";
}

std::optional<std::string> SharedArena::overwritten() const {
  for (const Array& array : arrays_) {
    const std::byte* const past = array.data + array.bytes;
    const int64_t offset = overwritten_byte(past, static_cast<size_t>(array.gap_end - past));
    if (offset >= 0) return "something was written " + beyond(array, past + offset);
  }
  return std::nullopt;
}

std::optional<std::string> SharedArena::place(const void* address) const {
  const auto* const place = static_cast<const std::byte*>(address);
  if (place < mapped_ || place >= mapped_ + kRoom + 2 * kGuard) return std::nullopt;
  if (closed_ != nullptr)
    return std::string("shared memory that cannot be accessed, for its block ") + closed_;
  if (place < first_ || arrays_.empty()) {
    return std::to_string(first_ - place) + " bytes before the begin of shared memory";
  }
  const Array* nearest = &arrays_.front();
  for (const Array& array : arrays_) {
    if (array.data <= place) nearest = &array;
  }
  if (place < nearest->data + nearest->bytes) return "a byte of shared memory";
  return beyond(*nearest, place);
}

}  // namespace kvbound::cuda::emulation
