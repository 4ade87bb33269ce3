// Device memory, streams and copies: as little of the CUDA runtime as the operations and their callers need, without
// its headers. In the emulated build the device is this processor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "build.hpp"

struct CUstream_st;

namespace kvbound::cuda {

/// A cudaStream_t. Operations are queued on it in order; null is the default stream.
using Stream = CUstream_st*;

inline namespace KVBOUND_CUDA_BUILD {

struct DeviceInfo {
  std::string name;        ///< "NVIDIA H200", "emulated"
  int compute_capability;  ///< 90 for sm_90; the emulation claims 90
  int multiprocessors;
  int64_t memory;  ///< bytes
  int64_t l2_bytes;
  int64_t shared_memory_per_block;  ///< bytes, the most that a block may have
};

/// The current device; nullopt if the kernels cannot run on it or there is none, with the runtime's message in `why`.
std::optional<DeviceInfo> find_device(std::string* why = nullptr);

/// The current device. Throws DeviceError if there is none.
const DeviceInfo& device();

namespace detail {
void* allocate(
    int64_t bytes);  // 256-byte aligned; throws DeviceError. Emulated: every byte 0xff (NaN), guarded
void release(void* memory) noexcept;
void to_device(void* to, const void* from, int64_t bytes, Stream stream);
void to_host(void* to, const void* from, int64_t bytes, Stream stream);
void set_zero(void* to, int64_t bytes, Stream stream);
}  // namespace detail

/// Waits for everything that was queued on the stream. Throws DeviceError, also for an earlier operation's failure.
void synchronise(Stream stream);

/// `size` objects in device memory, not initialised.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(int64_t size)
      : size_(size), data_(size > 0 ? static_cast<T*>(detail::allocate(bytes())) : nullptr) {}
  explicit Buffer(std::span<const T> numbers, Stream stream = nullptr) : Buffer(std::ssize(numbers)) {
    upload(numbers, stream);
  }
  ~Buffer() { detail::release(data_); }
  Buffer(Buffer&& other) noexcept
      : size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }

  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  T* data() { return data_; }
  const T* data() const { return data_; }

  /// Copies numbers to positions first, first + 1, ...; returns when `numbers` may be changed again.
  void upload(std::span<const T> numbers, Stream stream = nullptr, int64_t first = 0) {
    require_inside(first, numbers.size());
    detail::to_device(data_ + first, numbers.data(), static_cast<int64_t>(numbers.size_bytes()), stream);
  }
  /// Copies from positions first, first + 1, ... until `numbers` is full; returns when the copy is complete.
  void download(std::span<T> numbers, Stream stream = nullptr, int64_t first = 0) const {
    require_inside(first, numbers.size());
    detail::to_host(numbers.data(), data_ + first, static_cast<int64_t>(numbers.size_bytes()), stream);
  }
  /// Sets every byte to 0.
  void clear(Stream stream = nullptr) { detail::set_zero(data_, bytes(), stream); }

 private:
  void require_inside(int64_t first, size_t count) const {
    if (first < 0 || first + static_cast<int64_t>(count) > size_) {
      throw ShapeMismatch("copy of " + std::to_string(count) + " objects at " + std::to_string(first) +
                          " is outside a buffer of " + std::to_string(size_));
    }
  }

  int64_t size_ = 0;
  T* data_ = nullptr;
};

/// An operation's scratch memory: at least as many bytes as its ..._workspace function returns, 256-byte aligned. Its
/// contents need not outlive the operation.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
