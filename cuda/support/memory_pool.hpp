// Memory that is used again and again by the work of one stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Device memory for the buffers of one stream's work, and page-locked memory through which copies pass.
///
/// While a PoolScope is in force on a thread, every Buffer of that thread takes its memory from the pool
/// and gives it back at its end, without waiting: the next owner's work is queued on the same stream,
/// behind that of the last one. Uploads of up to 4 MiB then do not wait either: their numbers are kept in
/// page-locked memory until wait(). Larger ones pass through two chunks of so many bytes, one of which is
/// written while the other is copied: to page-lock memory for a whole prompt takes longer than its copy.
class MemoryPool {
 public:
  explicit MemoryPool(Stream stream) : stream_(stream) {}
  ~MemoryPool();  ///< all buffers have been given back
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  Stream stream() const { return stream_; }

  /// New blocks have this factor more room than was asked for, and fit again when more is asked for.
  static constexpr double kUsualGrowth = 1.125;
  void expect_usual_growth() {
    growth_ = kUsualGrowth;
    phase_ = Phase::usual;
  }
  /// The same with another factor, at least 1. Until settle() also a block that is used again has that room;
  /// afterwards any block that is large enough is used. So the same work finds blocks again, as long as it
  /// takes no more than that.
  void reserve_growth(double factor) {
    growth_ = factor;
    phase_ = Phase::reserving;
  }
  void settle() { phase_ = Phase::settled; }

  /// Device memory of so many bytes, as detail::allocate returns it: in the smallest free block in which they
  /// fit, unless, before settle(), it is more than twice as large as a new one; or else in a new one.
  void* take(int64_t bytes);
  void give(void* memory) noexcept;
  /// A hash of the buffers in use, of their places and sizes in the order in which they were taken: where it
  /// is what it was, the same work has the same memory.
  size_t layout() const;

  /// Page-locked memory of so many bytes, valid until wait().
  std::byte* stage(int64_t bytes);
  /// Page-locked memory that is used again once what was copied out of it has arrived.
  struct Chunk {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    Event copied = {};
  };
  /// The one of two chunks, of at least so many bytes, whose turn it is: waits for its event, which is to be
  /// recorded behind the next copy out of it.
  Chunk& chunk(int64_t bytes);
  /// Bytes of page-locked memory in use since the last wait().
  int64_t staged() const;
  /// Waits for the stream. Staged memory may then be used anew.
  void wait();

 private:
  struct Block {
    void* memory;
    int64_t room;   // bytes
    int64_t bytes;  // in use, if it is not free
    bool is_free;
    int64_t turn;  // in which it was taken
  };
  struct Staging {
    std::byte* data;
    int64_t bytes, used;
  };

  enum class Phase { usual, reserving, settled };

  int64_t room_for(int64_t bytes) const;
  Block* smallest_free(int64_t least, int64_t most);

  Stream stream_;
  double growth_ = kUsualGrowth;
  Phase phase_ = Phase::usual;
  std::vector<Block> blocks_;
  int64_t taken_ = 0;
  std::vector<Staging> staging_;
  std::array<Chunk, 2> chunks_;
  size_t turn_ = 0;
};

/// Puts a pool in force on the calling thread until the end of the scope; or none.
class PoolScope {
 public:
  explicit PoolScope(MemoryPool& pool);
  PoolScope();
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  MemoryPool* outer_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
