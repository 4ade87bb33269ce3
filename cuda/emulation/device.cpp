#include <unistd.h>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/device.hpp>

#include "block.hpp"
#include "memory.hpp"
#include "multiprocessors.hpp"
#include "queued_copies.hpp"
#include "recorded_work.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

int64_t system_limit(int name, int64_t otherwise) {
  const int64_t limit = sysconf(name);
  return limit > 0 ? limit : otherwise;
}

DeviceInfo processor() {
  return {.name = "emulated",
          .compute_capability = emulation::compute_capability(),
          .multiprocessors = emulation::multiprocessors(),
          .memory = system_limit(_SC_PHYS_PAGES, 1 << 20) * system_limit(_SC_PAGESIZE, 4096),
          .l2_bytes = int64_t{1} << 20,
          .shared_memory_per_block = emulation::shared_memory_limit(),
          .has_clusters = emulation::compute_capability() >= 90,
          .has_wgmma = emulation::compute_capability() == 90};
}

void require_device_memory(const char* call, const void* memory, int64_t bytes,
                           CallSite where = CallSite::current()) {
  if (bytes == 0 || (bytes > 0 && emulation::is_device_memory(memory, static_cast<size_t>(bytes)))) return;
  throw DeviceError(call, std::to_string(bytes) + " bytes at " + emulation::place_in_device_memory(memory),
                    where.file, where.line);
}

}  // namespace

std::optional<DeviceInfo> find_device(std::string*) { return processor(); }

// One entry for each limit of shared memory and number of multiprocessors that was ever set, so that
// returned references stay valid.
const DeviceInfo& device() {
  static std::mutex mutex;
  static std::map<std::pair<int64_t, int>, const DeviceInfo> known;
  const std::lock_guard lock(mutex);
  DeviceInfo info = processor();
  const std::pair key(info.shared_memory_per_block, info.multiprocessors);
  return known.try_emplace(key, std::move(info)).first->second;
}

namespace detail {
namespace {

void* guarded(int64_t bytes, const std::function<void*(size_t)>& allocate) {
  try {
    return allocate(static_cast<size_t>(bytes));
  } catch (const std::bad_alloc&) {
    throw DeviceError("allocate", "no memory for " + std::to_string(bytes) + " bytes", __FILE__, __LINE__);
  }
}

}  // namespace

void* allocate(int64_t bytes, int64_t room) {
  emulation::require_not_recording("allocate");
  ++counters().allocations;
  return guarded(bytes, [room](size_t size) {
    return emulation::allocate_device_memory(size, static_cast<size_t>(room));
  });
}

void release(void* memory) noexcept { emulation::release_device_memory(memory); }

void* set_aside(void* memory) noexcept { return emulation::set_aside_device_memory(memory); }

void* renew(void* set_aside, int64_t bytes) {
  return guarded(bytes, [set_aside](size_t size) { return emulation::renew_device_memory(set_aside, size); });
}

void* allocate_page_locked(int64_t bytes) {
  emulation::require_not_recording("allocate page-locked memory");
  ++counters().allocations;
  return ::operator new(static_cast<size_t>(bytes));
}

void release_page_locked(void* memory) noexcept { ::operator delete(memory); }

void queue_to_device(void* to, const void* from, int64_t bytes, Stream) {
  emulation::require_not_recording("copy to the device");
  require_device_memory("copy to the device", to, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
  emulation::QueuedCopies::of_thread().add_to_device(from, bytes);
  ++counters().uploads;
  counters().upload_bytes += bytes;
}

void queue_to_host(void* to, const void* from, int64_t bytes, Stream) {
  emulation::require_not_recording("copy to the host");
  require_device_memory("copy to the host", from, bytes);
  emulation::QueuedCopies::of_thread().add_to_host(to, from, bytes);
  ++counters().downloads;
  counters().download_bytes += bytes;
}

void queue_on_device(void* to, const void* from, int64_t bytes, Stream) {
  emulation::run_or_record([to, from, bytes] {
    require_device_memory("copy on the device", from, bytes);
    require_device_memory("copy on the device", to, bytes);
    std::memcpy(to, from, static_cast<size_t>(bytes));
    ++counters().moves;
  });
}

void queue_rows_on_device(void* to, int64_t to_stride, const void* from, int64_t from_stride,
                          int64_t row_bytes, int64_t rows, Stream) {
  if (rows == 0) return;
  emulation::run_or_record([=] {
    require_device_memory("copy on the device", from, (rows - 1) * from_stride + row_bytes);
    require_device_memory("copy on the device", to, (rows - 1) * to_stride + row_bytes);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                  static_cast<const std::byte*>(from) + row * from_stride, static_cast<size_t>(row_bytes));
    }
    ++counters().moves;
  });
}

void set_zero(void* to, int64_t bytes, Stream) {
  if (bytes == 0) return;
  emulation::run_or_record([to, bytes] {
    require_device_memory("set to zero", to, bytes);
    std::memset(to, 0, static_cast<size_t>(bytes));
    ++counters().fills;
  });
}

}  // namespace detail

struct Event::Mark {
  int64_t copies;  // before it
};

Event::Event() = default;
Event::~Event() = default;

void Event::record(Stream) {
  emulation::require_not_recording("record an event");
  mark_ = std::make_unique<Mark>(Mark{emulation::QueuedCopies::of_thread().added()});
}

void Event::wait() {
  emulation::require_not_recording("wait for an event");
  if (!mark_) return;
  ++counters().synchronisations;
  emulation::QueuedCopies::of_thread().complete(mark_->copies);
}

void synchronise(Stream) {
  emulation::require_not_recording("synchronise");
  ++counters().synchronisations;
  emulation::QueuedCopies& copies = emulation::QueuedCopies::of_thread();
  copies.complete(copies.added());
  if (const auto overwritten = emulation::overwritten_canaries()) {
    throw DeviceError("synchronise", *overwritten, __FILE__, __LINE__);
  }
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
