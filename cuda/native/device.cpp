#include <cuda_runtime.h>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/device.hpp>

#include "check.hpp"
#include "code_features.hpp"
#include "cuda_event.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

constexpr int kLeastCapability = 80;

DeviceInfo describe(int number) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties");
  const int capability = 10 * properties.major + properties.minor;
  const CodeFeatures code = capability >= kLeastCapability ? code_features() : CodeFeatures{};
  return {.name = properties.name,
          .compute_capability = capability,
          .multiprocessors = properties.multiProcessorCount,
          .memory = static_cast<int64_t>(properties.totalGlobalMem),
          .l2_bytes = properties.l2CacheSize,
          .shared_memory_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, number),
          .has_clusters = code.clusters && capability >= 90,
          .has_wgmma = code.wgmma && capability == 90};
}

}  // namespace

std::optional<DeviceInfo> find_device(std::string* why) {
  const auto none = [why](const std::string& reason) {
    if (why != nullptr) *why = reason;
    return std::nullopt;
  };
  int count = 0;
  int number = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return none(words(error));
  }
  if (count == 0) return none("no CUDA device");
  try {
    check(cudaGetDevice(&number), "cudaGetDevice");
    DeviceInfo info = describe(number);
    if (info.compute_capability < kLeastCapability) {
      return none(info.name + " has compute capability " + std::to_string(info.compute_capability / 10) +
                  "." + std::to_string(info.compute_capability % 10) + ", 8.0 is the least");
    }
    return info;
  } catch (const DeviceError& error) {
    return none(error.what());
  }
}

const DeviceInfo& device() {
  static std::mutex mutex;
  static std::map<int, const DeviceInfo> by_number;
  const std::lock_guard lock(mutex);
  int number = 0;
  const bool named = cudaGetDevice(&number) == cudaSuccess;
  if (const auto known = by_number.find(number); named && known != by_number.end()) return known->second;
  std::string why;
  std::optional<DeviceInfo> found = find_device(&why);
  if (!found) throw DeviceError("find a CUDA device", why, __FILE__, __LINE__);
  return by_number.emplace(number, *std::move(found)).first->second;
}

namespace detail {

void* allocate(int64_t, int64_t room) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(room)),
        [room] { return "cudaMalloc of " + std::to_string(room) + " bytes"; });
  ++counters().allocations;
  return memory;
}

void release(void* memory) noexcept {
  if (memory != nullptr) cudaFree(memory);  // a failure here is reported by the next call
}

void* set_aside(void* memory) noexcept { return memory; }
void* renew(void* set_aside, int64_t) { return set_aside; }

void* allocate_page_locked(int64_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, static_cast<size_t>(bytes)),
        [bytes] { return "cudaMallocHost of " + std::to_string(bytes) + " bytes"; });
  ++counters().allocations;
  return memory;
}

void release_page_locked(void* memory) noexcept {
  if (memory != nullptr) cudaFreeHost(memory);
}

void queue_to_device(void* to, const void* from, int64_t bytes, Stream stream) {
  const auto count = static_cast<size_t>(bytes);
  check(cudaMemcpyAsync(to, from, count, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync to the device");
  ++counters().uploads;
  counters().upload_bytes += bytes;
}

void queue_to_host(void* to, const void* from, int64_t bytes, Stream stream) {
  const auto count = static_cast<size_t>(bytes);
  check(cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync to the host");
  ++counters().downloads;
  counters().download_bytes += bytes;
}

void queue_on_device(void* to, const void* from, int64_t bytes, Stream stream) {
  const auto count = static_cast<size_t>(bytes);
  check(cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync on the device");
  ++counters().moves;
}

void queue_rows_on_device(void* to, int64_t to_stride, const void* from, int64_t from_stride,
                          int64_t row_bytes, int64_t rows, Stream stream) {
  if (rows == 0) return;
  if (std::max(to_stride, from_stride) > INT32_MAX) {  // the most that cudaMemcpy2D takes
    for (int64_t row = 0; row < rows; ++row) {
      queue_on_device(static_cast<std::byte*>(to) + row * to_stride,
                      static_cast<const std::byte*>(from) + row * from_stride, row_bytes, stream);
    }
    return;
  }
  const auto size = [](int64_t number) { return static_cast<size_t>(number); };
  check(cudaMemcpy2DAsync(to, size(to_stride), from, size(from_stride), size(row_bytes), size(rows),
                          cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpy2DAsync on the device");
  ++counters().moves;
}

void set_zero(void* to, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream), "cudaMemsetAsync");
  ++counters().fills;
}

namespace {

std::string launch_in(CallSite where) { return std::string("launch in ") + where.function; }

// Allows the kernel all the shared memory that a block of the current device may have, once for each
// thread, kernel and device. A limit set for one launch could be too small for the launch of another
// thread, so all threads set the same.
void grant_shared_memory(const void* kernel, CallSite where) {
  static thread_local std::set<std::pair<int, const void*>> granted;
  int number = 0;
  check(cudaGetDevice(&number), "cudaGetDevice");
  if (granted.contains({number, kernel})) return;
  const int most = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
      [&] { return launch_in(where) + " with " + std::to_string(most) + " bytes of shared memory"; }, where);
  granted.emplace(number, kernel);
}

// Whether kernels' code for this device waits for the launch before; and KVBOUND_SEPARATE_LAUNCHES is not
// set, by which to see what overlapping launches save, or whether they matter for a fault: also for a part of
// a program, which sets it.
bool may_overlap() { return device().has_clusters && std::getenv("KVBOUND_SEPARATE_LAUNCHES") == nullptr; }

}  // namespace

void launch(const void* kernel, const LaunchShape& shape, void** arguments) {
  constexpr int64_t kWithoutAsking = 48 * 1024;
  if (shape.shared_bytes > kWithoutAsking) grant_shared_memory(kernel, shape.where);
  std::array<cudaLaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (shape.cluster.x * shape.cluster.y * shape.cluster.z > 1) {
    cudaLaunchAttribute& cluster = attributes[count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster.x, shape.cluster.y, shape.cluster.z};
  }
  if (shape.is_dependent && may_overlap()) {
    cudaLaunchAttribute& overlap = attributes[count++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = shape.grid;
  configuration.blockDim = shape.block;
  configuration.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  configuration.stream = shape.stream;
  configuration.attrs = attributes.data();
  configuration.numAttrs = count;
  check(
      cudaLaunchKernelExC(&configuration, kernel, arguments), [&] { return launch_in(shape.where); },
      shape.where);
  ++counters().launches;
}

}  // namespace detail

struct Event::Mark {
  CudaEvent event{cudaEventDisableTiming};
};

Event::Event() = default;
Event::~Event() = default;

void Event::record(Stream stream) {
  if (!mark_) mark_ = std::make_unique<Mark>();
  mark_->event.record(stream);
}

void Event::wait() {
  if (!mark_) return;
  ++counters().synchronisations;
  mark_->event.wait();
}

void synchronise(Stream stream) {
  ++counters().synchronisations;
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
