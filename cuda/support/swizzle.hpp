// How tiles lie in shared memory so that tensor cores read them without bank conflicts.
#pragma once

#include <cstdint>

namespace kvbound::cuda {

/// Bytes of a row of units of 16 bytes, which are permuted among each other: the widest
/// of the hardware's modes.
inline constexpr int64_t kSwizzleSpan = 128;

/// Bytes after which the permutations repeat: a tile's address in shared memory is a multiple of it.
inline constexpr int64_t kSwizzlePeriod = 8 * kSwizzleSpan;

/// Where the byte at this address of shared memory goes, or at this offset from a multiple of kSwizzlePeriod.
/// source  PTX ISA, 5.5.5 (tensor swizzling modes) and 9.7.15.5 (wgmma's shared-memory layouts)
constexpr int64_t swizzled(int64_t address) { return address ^ address / kSwizzleSpan % 8 * 16; }

}  // namespace kvbound::cuda
