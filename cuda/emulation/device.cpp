#include <unistd.h>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include <kvbound/cuda/support/device.hpp>

#include "block.hpp"
#include "memory.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

int64_t system_limit(int name, int64_t otherwise) {
  const int64_t limit = sysconf(name);
  return limit > 0 ? limit : otherwise;
}

// A constant number of multiprocessors, so that launches do not depend on the machine.
DeviceInfo processor() {
  return {.name = "emulated",
          .compute_capability = 90,
          .multiprocessors = 16,
          .memory = system_limit(_SC_PHYS_PAGES, 1 << 20) * system_limit(_SC_PAGESIZE, 4096),
          .l2_bytes = int64_t{1} << 20,
          .shared_memory_per_block = emulation::shared_memory_limit()};
}

void require_device_memory(const char* call, const void* memory, int64_t bytes,
                           CallSite where = CallSite::current()) {
  if (bytes == 0 || (bytes > 0 && emulation::is_device_memory(memory, static_cast<size_t>(bytes)))) return;
  throw DeviceError(call, std::to_string(bytes) + " bytes at " + emulation::place_in_device_memory(memory),
                    where.file, where.line);
}

}  // namespace

std::optional<DeviceInfo> find_device(std::string*) { return processor(); }

// One entry for each limit of shared memory that was ever set, so that returned references stay valid.
const DeviceInfo& device() {
  static std::mutex mutex;
  static std::map<int64_t, const DeviceInfo> by_limit;
  const std::lock_guard lock(mutex);
  DeviceInfo info = processor();
  return by_limit.try_emplace(info.shared_memory_per_block, std::move(info)).first->second;
}

namespace detail {

void* allocate(int64_t bytes) {
  try {
    return emulation::allocate_device_memory(static_cast<size_t>(bytes));
  } catch (const std::bad_alloc&) {
    throw DeviceError("allocate", "no memory for " + std::to_string(bytes) + " bytes", __FILE__, __LINE__);
  }
}

void release(void* memory) noexcept { emulation::release_device_memory(memory); }

void to_device(void* to, const void* from, int64_t bytes, Stream) {
  require_device_memory("copy to the device", to, bytes);
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void to_host(void* to, const void* from, int64_t bytes, Stream) {
  require_device_memory("copy to the host", from, bytes);
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void set_zero(void* to, int64_t bytes, Stream) {
  require_device_memory("set to zero", to, bytes);
  if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
}

}  // namespace detail

void synchronise(Stream) {
  if (const auto overwritten = emulation::overwritten_canaries()) {
    throw DeviceError("synchronise", *overwritten, __FILE__, __LINE__);
  }
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
