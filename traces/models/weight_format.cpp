#include "weight_format.hpp"

#include <cstring>
#include <string>

#include <kvbound/reference/core/error.hpp>
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

[[gnu::always_inline]] inline void decode_f32(const Byte* block, float* out) {
  *out = number_at<float>(block);
}
[[gnu::always_inline]] inline void decode_f16(const Byte* block, float* out) { *out = half_at(block); }
[[gnu::always_inline]] inline void decode_bf16(const Byte* block, float* out) {
  *out = from_bfloat(number_at<uint16_t>(block));
}

// The integers of 32 numbers, which are taken apart first and scaled then: loops over 32 become vector code.
using Quants = std::array<Byte, 32>;

// out[i] = d (quants[i] - centre)
[[gnu::always_inline]] inline void scale_about(const Quants& quants, int centre, float d, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(quants[i] - centre);
}
// out[i] = d quants[i] + m
[[gnu::always_inline]] inline void scale_and_add(const Quants& quants, float d, float m, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(quants[i]) + m;
}

[[gnu::always_inline]] inline void decode_q8_0(const Byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<signed char>(block[2 + i]));
}

// Numbers i and i + 16 are the low and the high half of byte i.
[[gnu::always_inline]] inline void take_halves(const Byte* bytes, Quants& quants) {
  for (int i = 0; i < 16; ++i) quants[i] = bytes[i] & 15;
  for (int i = 0; i < 16; ++i) quants[i + 16] = bytes[i] >> 4;
}

[[gnu::always_inline]] inline void decode_q4_0(const Byte* block, float* out) {
  Quants quants;
  take_halves(block + 2, quants);
  scale_about(quants, 8, half_at(block), out);
}

[[gnu::always_inline]] inline void decode_q4_1(const Byte* block, float* out) {
  Quants quants;
  take_halves(block + 4, quants);
  scale_and_add(quants, half_at(block), half_at(block + 2), out);
}

// Of every byte, 16 in byte i where its bit i is set.
constexpr std::array<uint64_t, 256> kFifthBits = [] {
  std::array<uint64_t, 256> all{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    for (int i = 0; i < 8; ++i) all[byte] |= (byte >> i & 1) << (8 * i + 4);
  }
  return all;
}();

// The fifth bit of number i is bit i % 8 of byte i / 8.
[[gnu::always_inline]] inline void add_fifth_bits(const Byte* bits, Quants& quants) {
  for (int i = 0; i < 4; ++i) {
    const uint64_t eight = number_at<uint64_t>(quants.data() + 8 * i) | kFifthBits[bits[i]];
    std::memcpy(quants.data() + 8 * i, &eight, sizeof(eight));
  }
}

[[gnu::always_inline]] inline void decode_q5_0(const Byte* block, float* out) {
  Quants quants;
  take_halves(block + 6, quants);
  add_fifth_bits(block + 2, quants);
  scale_about(quants, 16, half_at(block), out);
}

[[gnu::always_inline]] inline void decode_q5_1(const Byte* block, float* out) {
  Quants quants;
  take_halves(block + 8, quants);
  add_fifth_bits(block + 4, quants);
  scale_and_add(quants, half_at(block), half_at(block + 2), out);
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
  for (int group = 0; group < 8; ++group) {
    const GroupScales own(block + 4, group);
    const int shift = group % 2 * 4;
    Quants quants;
    for (int i = 0; i < 32; ++i) {
      const int above = has_fifth ? (fifth[i] >> group & 1) << 4 : 0;
      quants[i] = static_cast<Byte>((bytes[group / 2 * 32 + i] >> shift & 15) | above);
    }
    scale_and_add(quants, d * static_cast<float>(own.scale), -(e * static_cast<float>(own.offset)),
                  out + 32 * group);
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
  for (int part = 0; part < 8; ++part) {
    const int half = part / 4, quarter = part % 4, low_shift = quarter / 2 * 4, high_shift = quarter * 2;
    const Byte* const low_bits = block + 64 * half + quarter % 2 * 32;
    const Byte* const high_bits = block + 128 + 32 * half;
    const auto scale = [&](int i) {
      return d * static_cast<float>(static_cast<signed char>(block[192 + 2 * part + i]));
    };
    const float first = scale(0), second = scale(1);
    for (int i = 0; i < 32; ++i) {
      const int bits = (low_bits[i] >> low_shift & 15) | (high_bits[i] >> high_shift & 3) << 4;
      out[32 * part + i] = (i < 16 ? first : second) * static_cast<float>(bits - 32);
    }
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
      return decode_all<WeightFormat::f32, decode_f32>(first, out);
    case WeightFormat::f16:
      return decode_all<WeightFormat::f16, decode_f16>(first, out);
    case WeightFormat::bf16:
      return decode_all<WeightFormat::bf16, decode_bf16>(first, out);
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
