// How tiles lie in shared memory so that tensor cores read them without bank conflicts.
#pragma once

#include <cstdint>

namespace kvbound::cuda {

/// The unit of 16 bytes at a byte address of shared memory goes to another one of the same row of `swizzle` units:
///
///     address ^ (address / 128 % swizzle) * 16
///
/// source  PTX ISA, 5.5.5 (tensor swizzling modes) and 9.7.15.5 (wgmma's shared-memory layouts)
enum class Swizzle : uint8_t { kNone = 1, k32Bytes = 2, k64Bytes = 4, k128Bytes = 8 };

/// Bytes of a row of units that are permuted among each other; 16 without a permutation.
constexpr int64_t swizzle_span(Swizzle swizzle) { return 16 * static_cast<int64_t>(swizzle); }

/// Bytes after which the permutations repeat: a tile's address in shared memory is a multiple of it, and of 128.
constexpr int64_t swizzle_period(Swizzle swizzle) { return 128 * static_cast<int64_t>(swizzle); }

/// Where the byte goes. The address may be an offset from a multiple of swizzle_period.
constexpr int64_t swizzled(int64_t address, Swizzle swizzle) {
  return address ^ address / 128 % static_cast<int64_t>(swizzle) * 16;
}

}  // namespace kvbound::cuda
