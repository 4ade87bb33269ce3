// Memory that is used again and again by the work of one stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Device memory for the buffers of one stream's work, and page-locked memory through which copies pass.
///
/// While a PoolScope is in force on a thread, every Buffer of that thread takes its memory from the pool and gives it
/// back at its end, without waiting: the next owner's work is queued on the same stream, behind that of the last one.
/// Uploads then do not wait either: their numbers are kept in page-locked memory until wait(). Those of more than 4 MiB are
/// waited for instead: to page-lock memory for a whole prompt takes longer than its copy.
class MemoryPool {
 public:
  explicit MemoryPool(Stream stream) : stream_(stream) {}
  ~MemoryPool();  ///< all buffers have been given back
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  Stream stream() const { return stream_; }

  /// By which factor what is taken may grow from use to use: new blocks have so much more room, and find their owners
  /// again. At least 1; 9 / 8 unless it is set. Until settle() also a block that is used again has that room, so that the
  /// same work finds blocks as long as it takes no more than that.
  void expect_growth(double factor) {
    growth_ = factor;
    reserving_ = true;
  }
  void settle() { reserving_ = false; }

  /// Device memory of so many bytes, as detail::allocate returns it: in the free block whose room is nearest to that of a
  /// new one, if they fit and it is not twice as large, or else in a new one.
  void* take(int64_t bytes);
  void give(void* memory) noexcept;

  /// Page-locked memory of so many bytes, valid until wait().
  std::byte* stage(int64_t bytes);
  /// Waits for the stream. Staged memory may then be used anew.
  void wait();

 private:
  struct Block {
    void* memory;
    int64_t room;  // bytes
    bool is_free;
  };
  struct Staging {
    std::byte* data;
    int64_t bytes, used;
  };

  int64_t room_for(int64_t bytes) const;

  Stream stream_;
  double growth_ = 1.125;
  bool reserving_ = false;
  std::vector<Block> blocks_;
  std::vector<Staging> staging_;
};

/// Puts a pool in force on the calling thread until the end of the scope.
class PoolScope {
 public:
  explicit PoolScope(MemoryPool& pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  MemoryPool* outer_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
