#include "weight_format.hpp"

#include <cstring>
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/byte_lanes.hpp>
#include <kvbound/reference/numerics/instruction_set.hpp>

#include "../half_numbers.hpp"

namespace kvbound::traces {
namespace {

using Byte = unsigned char;

// What decodes a block is inlined into functions for every instruction set, whose loops become vector code.
template <class Number>
[[gnu::always_inline]] inline Number number_at(const Byte* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

[[gnu::always_inline]] inline float half_at(const Byte* bytes) {
  return from_half(number_at<uint16_t>(bytes));
}

// The integers of 16 numbers.
using Quants = reference::ByteLanes;

[[gnu::always_inline]] inline void decode_q8_0(const Byte* block, float* out) {
  const float d = half_at(block);
  for (int half = 0; half < 2; ++half) {
    Quants quants;
    reference::load(block + 2 + 16 * half, quants);
    reference::scale_about(quants ^ 128, 128, d, out + 16 * half);  // signed bytes
  }
}

// 16 in byte i where bit i of a byte is set.
constexpr std::array<uint64_t, 256> kFifthBits = [] {
  std::array<uint64_t, 256> all{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    for (int i = 0; i < 8; ++i) all[byte] |= (byte >> i & 1) << (8 * i + 4);
  }
  return all;
}();

// Numbers i and i + 16 of a block are the low and the high half of byte i. The fifth bit of number i is bit
// i % 8 of byte i / 8 of `fifth`, which is null where there is none.
[[gnu::always_inline]] inline void take_half(const Byte* bytes, int half, const Byte* fifth, Quants& quants) {
  reference::load(bytes, quants);
  quants = quants >> static_cast<Byte>(4 * half) & 15;
  if (!fifth) return;
  Quants above;
  reference::set_bytes(kFifthBits[fifth[2 * half]], kFifthBits[fifth[2 * half + 1]], above);
  quants |= above;
}

[[gnu::always_inline]] inline void decode_q4_0(const Byte* block, float* out) {
  const float d = half_at(block);
  for (int half = 0; half < 2; ++half) {
    Quants quants;
    take_half(block + 2, half, nullptr, quants);
    reference::scale_about(quants, 8, d, out + 16 * half);
  }
}

[[gnu::always_inline]] inline void decode_q4_1(const Byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int half = 0; half < 2; ++half) {
    Quants quants;
    take_half(block + 4, half, nullptr, quants);
    reference::scale_and_add(quants, d, m, out + 16 * half);
  }
}

[[gnu::always_inline]] inline void decode_q5_0(const Byte* block, float* out) {
  const float d = half_at(block);
  for (int half = 0; half < 2; ++half) {
    Quants quants;
    take_half(block + 6, half, block + 2, quants);
    reference::scale_about(quants, 16, d, out + 16 * half);
  }
}

[[gnu::always_inline]] inline void decode_q5_1(const Byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int half = 0; half < 2; ++half) {
    Quants quants;
    take_half(block + 8, half, block + 4, quants);
    reference::scale_and_add(quants, d, m, out + 16 * half);
  }
}

// Scale and offset of the eight groups of 32 numbers, 6 bits each in 12 bytes: the first four of both in
// the low six bits of bytes 0..7; of the others the low four bits in bytes 8..11 and the high two bits
// above those of bytes 0..7.
struct GroupScales {
  int scale, offset;
  GroupScales(const Byte* packed, int group) {
    if (group < 4) {
      scale = packed[group] & 63;
      offset = packed[group + 4] & 63;
    } else {
      scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
      offset = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
  }
};

// Groups 2p and 2p + 1 are the low and the high halves of the same 32 bytes; `fifth` points to their fifth
// bits, bit 2p and 2p + 1 of 32 bytes, where there are any.
template <bool has_fifth>
[[gnu::always_inline]] inline void decode_groups(const Byte* block, const Byte* fifth, const Byte* bytes,
                                                 float* out) {
  const float d = half_at(block), e = half_at(block + 2);
#pragma GCC unroll 8
  for (int group = 0; group < 8; ++group) {
    const GroupScales own(block + 4, group);
    const float scale = d * static_cast<float>(own.scale), offset = e * static_cast<float>(own.offset);
    for (int part = 0; part < 32; part += 16) {
      Quants quants;
      take_half(bytes + group / 2 * 32 + part, group % 2, nullptr, quants);
      if (has_fifth) {
        Quants above;
        reference::load(fifth + part, above);
        quants |= (above >> static_cast<Byte>(group) & 1) << 4;
      }
      reference::scale_and_add(quants, scale, -offset, out + 32 * group + part);
    }
  }
}

[[gnu::always_inline]] inline void decode_q4_k(const Byte* block, float* out) {
  decode_groups<false>(block, nullptr, block + 16, out);
}
[[gnu::always_inline]] inline void decode_q5_k(const Byte* block, float* out) {
  decode_groups<true>(block, block + 16, block + 48, out);
}

// Per half of 128 numbers: the low four bits of numbers i, i + 32 in the low halves of 64 bytes, of i + 64,
// i + 96 in the high halves; the high two bits of the four in one byte. Every 16 numbers have a scale.
[[gnu::always_inline]] inline void decode_q6_k(const Byte* block, float* out) {
  const float d = half_at(block + 208);
#pragma GCC unroll 16
  for (int part = 0; part < 16; ++part) {
    const int half = part / 8, quarter = part / 2 % 4, begin = part % 2 * 16;
    const float scale = d * static_cast<float>(static_cast<signed char>(block[192 + part]));
    Quants quants, above;
    take_half(block + 64 * half + quarter % 2 * 32 + begin, quarter / 2, nullptr, quants);
    reference::load(block + 128 + 32 * half + begin, above);
    quants |= (above >> static_cast<Byte>(2 * quarter) & 3) << 4;
    reference::scale_about(quants, 32, scale, out + 16 * part);
  }
}

// Decodes blocks one after the other.
template <WeightFormat format, auto decode_block>
void decode_all(const Byte* blocks, std::span<float> out) {
  reference::with_widest_instructions([&]() __attribute__((always_inline)) {
    const Byte* block = blocks;
    for (size_t done = 0; done < out.size(); done += traits(format).block_elements) {
      decode_block(block, out.data() + done);
      block += traits(format).block_bytes;
    }
  });
}

// Numbers of 16 bits, 32 at a time as far as there are as many.
template <auto widened>
void decode_halves(const Byte* bytes, std::span<float> out) {
  reference::with_widest_instructions([&]() __attribute__((always_inline)) {
    using Halves = std::array<uint16_t, 32>;
    const auto at = [&](size_t i) { return bytes + i * sizeof(uint16_t); };
    float* const numbers = out.data();
    size_t done = 0;
    for (; done + std::tuple_size_v<Halves> <= out.size(); done += std::tuple_size_v<Halves>) {
      const auto halves = number_at<Halves>(at(done));
      for (size_t i = 0; i < halves.size(); ++i) numbers[done + i] = widened(halves[i]);
    }
    for (; done < out.size(); ++done) numbers[done] = widened(number_at<uint16_t>(at(done)));
  });
}

struct OtherType {
  uint32_t type;
  std::string_view name;
};
constexpr std::array<OtherType, 21> kOtherTypes{{
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
}};

}  // namespace

std::string_view other_ggml_type(uint32_t type) {
  for (const OtherType& other : kOtherTypes) {
    if (other.type == type) return other.name;
  }
  return "";
}

void decode(WeightFormat format, std::span<const char> blocks, std::span<float> out) {
  const WeightFormatTraits& own = traits(format);
  const auto elements = static_cast<size_t>(own.block_elements), bytes = static_cast<size_t>(own.block_bytes);
  const size_t count = out.size() / elements;
  if (out.size() % elements != 0 || blocks.size() != count * bytes) {
    throw ShapeMismatch(std::to_string(blocks.size()) + " bytes of " + std::string(own.name) + " are not " +
                        std::to_string(out.size()) + " numbers in blocks of " + std::to_string(elements));
  }
  const auto* first = reinterpret_cast<const Byte*>(blocks.data());
  switch (format) {
    case WeightFormat::f32:
      if (!out.empty()) std::memcpy(out.data(), first, out.size_bytes());
      return;
    case WeightFormat::f16:
      return decode_halves<from_half>(first, out);
    case WeightFormat::bf16:
      return decode_halves<from_bfloat>(first, out);
    case WeightFormat::q8_0:
      return decode_all<WeightFormat::q8_0, decode_q8_0>(first, out);
    case WeightFormat::q4_0:
      return decode_all<WeightFormat::q4_0, decode_q4_0>(first, out);
    case WeightFormat::q4_1:
      return decode_all<WeightFormat::q4_1, decode_q4_1>(first, out);
    case WeightFormat::q5_0:
      return decode_all<WeightFormat::q5_0, decode_q5_0>(first, out);
    case WeightFormat::q5_1:
      return decode_all<WeightFormat::q5_1, decode_q5_1>(first, out);
    case WeightFormat::q4_k:
      return decode_all<WeightFormat::q4_k, decode_q4_k>(first, out);
    case WeightFormat::q5_k:
      return decode_all<WeightFormat::q5_k, decode_q5_k>(first, out);
    case WeightFormat::q6_k:
      return decode_all<WeightFormat::q6_k, decode_q6_k>(first, out);
  }
}

}  // namespace kvbound::traces
