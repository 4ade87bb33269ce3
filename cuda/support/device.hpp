// Device memory, streams and copies: as little of the CUDA runtime as the operations and their callers need,
// without its headers. In the emulated build the device is this processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
  /// Clusters, mbarriers, TMA, dependent launches: compute capability 9.0 and later, in kernels' code, too.
  bool has_clusters;
  bool has_wgmma;  ///< likewise of compute capability 9.0 alone
};

/// The current device; nullopt if the kernels cannot run on it or there is none, with the
/// runtime's message in `why`.
std::optional<DeviceInfo> find_device(std::string* why = nullptr);

/// The current device. Throws DeviceError if there is none.
const DeviceInfo& device();

class MemoryPool;

namespace detail {
/// 256-byte aligned; throws DeviceError. Emulated: every byte 0xff (NaN), guarded behind the first `bytes`.
void* allocate(int64_t bytes, int64_t room);
void release(void* memory) noexcept;
/// Keeps memory for renew(), which makes it memory of at most its room again. Emulated: until
/// then it is inaccessible.
void* set_aside(void* memory) noexcept;
void* renew(void* set_aside, int64_t bytes);
void* allocate_page_locked(int64_t bytes);
void release_page_locked(void* memory) noexcept;

// Copies that are not waited for. The host's memory must stay as it is until the stream was synchronised or
// an event behind them waited for: emulated, what is copied to the host arrives only then, and memory that
// has changed before is an error.
void queue_to_device(void* to, const void* from, int64_t bytes, Stream stream);
void queue_to_host(void* to, const void* from, int64_t bytes, Stream stream);
void queue_on_device(void* to, const void* from, int64_t bytes, Stream stream);
/// `rows` rows of row_bytes bytes; strides in bytes, from one row to the next.
void queue_rows_on_device(void* to, int64_t to_stride, const void* from, int64_t from_stride,
                          int64_t row_bytes, int64_t rows, Stream stream);
void set_zero(void* to, int64_t bytes, Stream stream);

// By way of a pool; null: without one.
void* take(int64_t bytes, MemoryPool* pool);
void give(void* memory, MemoryPool* pool) noexcept;
MemoryPool* pool_in_force();
/// Returns when the host's memory may be changed again.
void upload(void* to, const void* from, int64_t bytes, Stream stream);
/// Uploads `rows` rows of row_bytes bytes each: write(first, count, memory) writes `count` of them, from
/// `first` on, into page-locked memory, of many rows some while the device copies those before them.
using WriteRows = std::function<void(int64_t first, int64_t count, std::byte* memory)>;
void upload_rows(void* to, int64_t rows, int64_t row_bytes, const WriteRows& write, Stream stream);
/// Returns when the copy is complete.
void download(void* to, const void* from, int64_t bytes, Stream stream);
}  // namespace detail

/// Waits for everything that was queued on the stream. Throws DeviceError, also for an
/// earlier operation's failure.
void synchronise(Stream stream);

/// A mark behind what was queued on a stream, which may be waited for while more is queued.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Sets the mark, again if it was set. Throws DeviceError, as wait() does.
  void record(Stream stream);
  /// Returns when all before the mark is done, at once if it was never set. Host memory that copies before it
  /// use is free again, and what they brought to the host has arrived.
  void wait();

 private:
  struct Mark;
  std::unique_ptr<Mark> mark_;
};

/// `size` objects in device memory, not initialised; from the pool in force on the thread, if there is one.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(int64_t size)
      : size_(size),
        pool_(detail::pool_in_force()),
        data_(size > 0 ? static_cast<T*>(detail::take(bytes(), pool_)) : nullptr) {}
  explicit Buffer(std::span<const T> numbers, Stream stream = nullptr) : Buffer(std::ssize(numbers)) {
    upload(numbers, stream);
  }
  ~Buffer() { detail::give(data_, pool_); }
  Buffer(Buffer&& other) noexcept
      : size_(std::exchange(other.size_, 0)),
        pool_(other.pool_),
        data_(std::exchange(other.data_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(pool_, other.pool_);
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
    detail::upload(data_ + first, numbers.data(), static_cast<int64_t>(numbers.size_bytes()), stream);
  }
  /// Copies `rows` rows of row_size objects each to positions first, first + 1, ..., as detail::upload_rows.
  void upload_rows(int64_t rows, int64_t row_size,
                   const std::function<void(int64_t first, int64_t count, T* memory)>& write,
                   Stream stream = nullptr, int64_t first = 0) {
    require_inside(first, static_cast<size_t>(rows * row_size));
    detail::upload_rows(
        data_ + first, rows, row_size * static_cast<int64_t>(sizeof(T)),
        [&write](int64_t from, int64_t count, std::byte* memory) {
          write(from, count, reinterpret_cast<T*>(memory));
        },
        stream);
  }
  /// Copies from positions first, first + 1, ... until `numbers` is full; returns when the copy is complete.
  void download(std::span<T> numbers, Stream stream = nullptr, int64_t first = 0) const {
    require_inside(first, numbers.size());
    detail::download(numbers.data(), data_ + first, static_cast<int64_t>(numbers.size_bytes()), stream);
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
  MemoryPool* pool_ = nullptr;
  T* data_ = nullptr;
};

/// An operation's scratch memory: at least as many bytes as its ..._workspace function returns, 256-byte
/// aligned. Its contents need not outlive the operation.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
