// One block's shared memory: arrays with canaries behind them, laid out anew by every block.
//
// The asynchronous proxy (bulk copies, wgmma) has a view of its own: what threads write becomes visible to it
// by a proxy fence, here `publish`. The view is kept from the block's first use of that proxy on.
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

  /// Removes all arrays; the next block may have `bytes` bytes. Opens the memory.
  void restart(int64_t bytes);

  /// Array `number` of the block; the first request creates it, filled with NaN. The offset is the one on a
  /// GPU, where no canaries lie between arrays. Null if the array does not fit; `problem` then says why.
  void* array(int number, int64_t offset, int64_t bytes, int64_t alignment, std::string& problem);

  /// Lets every access fault, with `why` in its description, until the memory is opened again.
  void close(const char* why);
  void open();

  /// Whether the address lies in this memory, in an array or between two.
  bool covers(const void* address) const {
    const auto* const place = static_cast<const std::byte*>(address);
    return first_ <= place && place < past_;
  }
  /// Whether the bytes lie within one array.
  bool holds(const void* memory, int64_t bytes) const;

  /// The same place in another block's arena: its array is created if that block has not asked for it yet.
  /// Null if the address lies in no array.
  void* same_place_in(SharedArena& other, const void* address, std::string& problem) const;

  /// The address that the place has on a GPU, where arrays lie behind each other from kBegin on;
  /// -1 if it is in no array.
  int64_t address(const void* place) const;
  /// The place of an address; null if it lies in no array.
  std::byte* place_of(int64_t address) const;
  /// Where a GPU's dynamic shared memory begins: the system keeps the first 1024 bytes.
  static constexpr int64_t kBegin = 1024;

  /// The asynchronous proxy's view of a byte: the value that was last published.
  std::byte* view(const std::byte* place);
  /// Makes all that has been written visible to the asynchronous proxy.
  void publish();

  /// A description of a write outside the arrays; nullopt if there was none.
  std::optional<std::string> overwritten() const;

  /// Where the address lies, relative to the nearest array; nullopt if it is outside this memory.
  std::optional<std::string> place(const void* address) const;

 private:
  struct Array {
    int64_t offset;
    int64_t bytes;
    int64_t alignment;
    std::byte* data;
    std::byte* gap_end;
  };
  std::string beyond(const Array& array, const std::byte* place) const;
  const Array* array_around(const void* place) const;
  void begin_view();

  std::byte* mapped_;
  std::byte* first_;
  std::byte* past_;
  int64_t granted_ = 0;
  std::vector<Array> arrays_;
  const char* closed_ = nullptr;  // why
  std::vector<std::byte> view_;   // empty, or as long as this memory
  bool viewed_ = false;           // by this block
};

}  // namespace kvbound::cuda::emulation
