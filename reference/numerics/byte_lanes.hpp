// Sixteen bytes at a time and what they are as numbers, for functions that are compiled for an instruction
// set (instruction_set.hpp). Compilers make no vector code of loops from bytes to floats, which might be the
// same memory.
#pragma once

#include <cstdint>
#include <cstring>

namespace kvbound::reference {

using ByteLanes [[gnu::vector_size(16)]] = unsigned char;
using WordLanes [[gnu::vector_size(16)]] = uint64_t;
using SingleLanes [[gnu::vector_size(64)]] = float;

[[gnu::always_inline]] inline void load(const unsigned char* from, ByteLanes& bytes) {
  std::memcpy(&bytes, from, sizeof bytes);
}

/// Bit for bit the two words, the first of them the first eight bytes.
[[gnu::always_inline]] inline void set_bytes(uint64_t first, uint64_t second, ByteLanes& bytes) {
  bytes = (ByteLanes)WordLanes{first, second};
}

[[gnu::always_inline]] inline void widen(const ByteLanes& bytes, SingleLanes& numbers) {
  using Integers [[gnu::vector_size(64)]] = int32_t;
  numbers = __builtin_convertvector(__builtin_convertvector(bytes, Integers), SingleLanes);
}

/// out[i] = scale (bytes[i] - centre).   centre: an integer below 2^23, so that the difference is exact
[[gnu::always_inline]] inline void scale_about(const ByteLanes& bytes, float centre, float scale,
                                               float* out) {
  SingleLanes numbers;
  widen(bytes, numbers);
  numbers = scale * (numbers - centre);
  std::memcpy(out, &numbers, sizeof numbers);
}

/// out[i] = scale bytes[i] + offset
[[gnu::always_inline]] inline void scale_and_add(const ByteLanes& bytes, float scale, float offset,
                                                 float* out) {
  SingleLanes numbers;
  widen(bytes, numbers);
  numbers = scale * numbers + offset;
  std::memcpy(out, &numbers, sizeof numbers);
}

}  // namespace kvbound::reference
