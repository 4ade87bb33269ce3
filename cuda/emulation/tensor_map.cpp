#include "tensor_map.hpp"

#include <string>

#include <kvbound/reference/core/error.hpp>

#include "async_proxy.hpp"
#include "memory.hpp"
#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr const char* kTensorCopy = "cp.async.bulk.tensor";

// One copy: `first` are the coordinates of the box's first number.
struct Box {
  TensorMap map;
  int64_t first[3];
  std::byte* to;

  // The number's address; null outside the tensor.
  const std::byte* number(int64_t x, int64_t y, int64_t z) const {
    const int64_t at[3] = {first[0] + x, first[1] + y, first[2] + z};
    const std::byte* place = map.data;
    for (int i = 0; i < 3; ++i) {
      if (at[i] < 0 || at[i] >= map.extents[i]) return nullptr;
      place += at[i] * map.strides[i];
    }
    return place;
  }

  void write() const {
    int64_t offset = 0;
    for (int64_t z = 0; z < map.box[2]; ++z) {
      for (int64_t y = 0; y < map.box[1]; ++y) {
        for (int64_t x = 0; x < map.box[0]; ++x, offset += map.bytes_of_number) {
          write_shared(to + swizzled(offset), number(x, y, z), map.bytes_of_number);
        }
      }
    }
  }

  void observe(Observer& watching) const {
    watching.shared_bytes(Instruction::bulk_copy, map.box[0] * map.box[1] * map.box[2] * map.bytes_of_number);
    for (int64_t z = 0; z < map.box[2]; ++z) {
      for (int64_t y = 0; y < map.box[1]; ++y) {
        const int64_t begin = std::max<int64_t>(0, -first[0]);
        const int64_t end = std::min(map.box[0], map.extents[0] - first[0]);
        const std::byte* const from = begin < end ? number(begin, y, z) : nullptr;
        if (from == nullptr) continue;
        watching.device_bytes(reinterpret_cast<uintptr_t>(from), (end - begin) * map.bytes_of_number);
      }
    }
  }
};

}  // namespace

TensorMap encode_tensor_map(const void* data, int64_t bytes_of_number, const TensorTile& tile,
                            CallSite where) {
  require_copyable(tile, data, bytes_of_number);
  const auto& [columns, rows, planes] = tile.extents;
  const TensorMap map{static_cast<const std::byte*>(data),
                      bytes_of_number,
                      {columns, rows, planes},
                      {bytes_of_number, tile.strides[0], tile.strides[1]},
                      {tile.box[0], tile.box[1], tile.box[2]}};
  int64_t last = 0;
  for (int i = 0; i < 3; ++i) last += (map.extents[i] - 1) * map.strides[i];
  if (!is_device_memory(data, static_cast<size_t>(last + bytes_of_number))) {
    throw DeviceError("tensor map",
                      std::to_string(last + bytes_of_number) + " bytes at " + place_in_device_memory(data),
                      where.file, where.line);
  }
  return map;
}

void load_box(void* shared, const TensorMap& map, uint64_t* barrier, const int (&first)[3], CallSite where) {
  if (first[0] * map.bytes_of_number % 16 != 0) {
    fail(std::string(kTensorCopy) + " from column " + std::to_string(first[0]) + ", whose " +
             std::to_string(map.bytes_of_number) + "-byte numbers do not begin on 16 bytes: illegal on a GPU",
         where);
  }
  refuse_early_access(map.data, static_cast<size_t>(map.bytes_of_number), where);
  const int64_t bytes = map.box[0] * map.box[1] * map.box[2] * map.bytes_of_number;
  require_shared(shared, bytes, kSwizzlePeriod, kTensorCopy, where);
  if (shared_arena().address(shared) % kSwizzlePeriod != 0) {
    fail(std::string(kTensorCopy) + " writes to an address that is no multiple of " +
             std::to_string(kSwizzlePeriod) + " on a GPU, where arrays lie behind each other",
         where);
  }
  const Box box{map, {first[0], first[1], first[2]}, static_cast<std::byte*>(shared)};
  async_proxy().loads.issue(kTensorCopy, {box.to, bytes, barrier, [box] { box.write(); }, where});
  if (observer != nullptr) box.observe(*observer);
}

}  // namespace kvbound::cuda::emulation
