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

  /// Forgets all arrays; the next block may have so many bytes.
  void restart(int64_t bytes);

  /// Array `number` of the block; the first thread that asks for it makes it, filled with NaN. The offset counts as on
  /// a GPU, where there is nothing between arrays. Null if it does not fit; `problem` then says how.
  void* array(int number, int64_t offset, int64_t bytes, int64_t alignment, std::string& problem);

  /// Whether the bytes lie within one array.
  bool holds(const void* memory, int64_t bytes) const;

  /// What was written outside the arrays, in words.
  std::optional<std::string> overwritten() const;

  /// Where the address lies, seen from the nearest array; nullopt if it is not here.
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
