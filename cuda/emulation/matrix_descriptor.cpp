#include "matrix_descriptor.hpp"

#include <cstring>

#include <kvbound/cuda/support/swizzle.hpp>

#include "async_proxy.hpp"
#include "shared_memory.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr const char* kProduct = "wgmma";
constexpr int64_t kUnitBytes = 16;
constexpr int64_t kNumbersOfUnit = 8;
constexpr int kRowsOfGroup = 8;
constexpr int kUnitsOfRow = 2;  // 16 numbers of 2 bytes

struct Matrix {
  int64_t address;
  int64_t leading;  // byte offsets
  int64_t stride;

  // The n-th unit of a row; of an N-major matrix that of one k, whose units are eight columns.
  int64_t unit(int row, int number) const {
    constexpr int64_t kUnitsOfSpan = kSwizzleSpan / kUnitBytes;
    const int64_t along_row = number / kUnitsOfSpan * leading + number % kUnitsOfSpan * kUnitBytes;
    const int64_t in_group = row % kRowsOfGroup * kSwizzleSpan;
    return swizzled(address + row / kRowsOfGroup * stride + in_group + along_row);
  }
};

int64_t field(uint64_t descriptor, int first_bit) {
  return static_cast<int64_t>(descriptor >> first_bit & 0x3fff) * kUnitBytes;
}

Matrix decoded(uint64_t descriptor, CallSite where) {
  constexpr uint64_t kMeaningful = 0xc00e3fff3fff3fff;
  if ((descriptor & ~kMeaningful) != 0)
    fail("wgmma with a matrix descriptor whose reserved bits are not zero", where);
  if ((descriptor >> 49 & 7) != 0) {
    fail(
        "wgmma with a matrix descriptor of a base offset, which the emulation does not know: begin tiles on a "
        "multiple of the swizzle's period",
        where);
  }
  if (descriptor >> 62 != 1)
    fail("wgmma with a matrix descriptor of another swizzle than that of 128 bytes", where);
  return {field(descriptor, 0), field(descriptor, 16), field(descriptor, 32)};
}

// The unit of 16 bytes at this address of the running block's shared memory; `what` is
// number `which` of the matrix.
const std::byte* unit_at(int64_t address, const char* what, int which, bool check, CallSite where) {
  const SharedArena& arena = shared_arena();
  const std::byte* const unit = arena.place_of(address);
  if (unit == nullptr || !arena.holds(unit, kUnitBytes)) {
    fail(std::string("wgmma reads ") + what + " " + std::to_string(which) + " of a matrix at address " +
             std::to_string(address) + " of shared memory, in no array",
         where);
  }
  if (check) require_visible(unit, kUnitBytes, kProduct, where);
  return unit;
}

}  // namespace

void read_rows(uint64_t descriptor, int first, int count, bool check, uint16_t (*rows)[16], CallSite where) {
  const Matrix matrix = decoded(descriptor, where);
  for (int r = 0; r < count; ++r) {
    for (int i = 0; i < kUnitsOfRow; ++i) {
      const int64_t address = matrix.unit(first + r, i);
      std::memcpy(rows[r] + kNumbersOfUnit * i, unit_at(address, "row", first + r, check, where), kUnitBytes);
    }
  }
}

void read_columns(uint64_t descriptor, int count, bool check, uint16_t (*rows)[16], CallSite where) {
  const Matrix matrix = decoded(descriptor, where);
  for (int k = 0; k < kUnitsOfRow * kNumbersOfUnit; ++k) {
    for (int i = 0; i < count / kNumbersOfUnit; ++i) {
      uint16_t numbers[kNumbersOfUnit];
      std::memcpy(numbers, unit_at(matrix.unit(k, i), "row", k, check, where), kUnitBytes);
      for (int n = 0; n < kNumbersOfUnit; ++n) rows[i * kNumbersOfUnit + n][k] = numbers[n];
    }
  }
}

}  // namespace kvbound::cuda::emulation
