// One block's shared memory: arrays with canaries behind them, laid out anew by every block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvbound::cuda::emulation {

class SharedArena {
 public:
  SharedArena();
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// Removes all arrays; the next block may have `bytes` bytes.
  void restart(int64_t bytes);

  /// Array `number` of the block; the first request creates it, filled with NaN. The offset is the one on a GPU, where
  /// no canaries lie between arrays. Null if the array does not fit; `problem` then says why.
  void* array(int number, int64_t offset, int64_t bytes, int64_t alignment, std::string& problem);

  /// Whether the bytes lie within one array.
  bool holds(const void* memory, int64_t bytes) const;

  /// A description of a write outside the arrays; nullopt if there was none.
  std::optional<std::string> overwritten() const;

  /// Where the address lies, relative to the nearest array; nullopt if it is outside this memory.
  std::optional<std::string> place(const void* address) const;

 private:
  struct Array {
    int64_t offset;
    int64_t bytes;
    std::byte* data;
    std::byte* gap_end;
  };
  std::string beyond(const Array& array, const std::byte* place) const;

  std::byte* mapped_;
  std::byte* first_;
  int64_t granted_ = 0;
  std::vector<Array> arrays_;
};

}  // namespace kvbound::cuda::emulation
