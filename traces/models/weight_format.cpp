#include "weight_format.hpp"

#include <cstring>
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>

namespace kvbound::traces {
namespace {

using Byte = unsigned char;

template <class Number>
Number number_at(const Byte* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

float half_at(const Byte* bytes) { return static_cast<float>(from_float16(number_at<uint16_t>(bytes))); }

int low(Byte byte) { return byte & 15; }
int high(Byte byte) { return byte >> 4; }

void decode_f32(const Byte* block, float* out) { *out = number_at<float>(block); }
void decode_f16(const Byte* block, float* out) { *out = half_at(block); }
void decode_bf16(const Byte* block, float* out) {
  *out = static_cast<float>(from_bfloat16(number_at<uint16_t>(block)));
}

void decode_q8_0(const Byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<signed char>(block[2 + i]));
}

// Numbers i and i + 16 are the low and the high half of byte i.
void decode_q4_0(const Byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(block[2 + i]) - 8);
    out[i + 16] = d * static_cast<float>(high(block[2 + i]) - 8);
  }
}

void decode_q4_1(const Byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(block[4 + i])) + m;
    out[i + 16] = d * static_cast<float>(high(block[4 + i])) + m;
  }
}

// The fifth bit of number i is bit i of a word.
int fifth_bit(uint32_t bits, int i) { return static_cast<int>(bits >> i & 1) << 4; }

void decode_q5_0(const Byte* block, float* out) {
  const float d = half_at(block);
  const auto bits = number_at<uint32_t>(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((low(block[6 + i]) | fifth_bit(bits, i)) - 16);
    out[i + 16] = d * static_cast<float>((high(block[6 + i]) | fifth_bit(bits, i + 16)) - 16);
  }
}

void decode_q5_1(const Byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const auto bits = number_at<uint32_t>(block + 4);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low(block[8 + i]) | fifth_bit(bits, i)) + m;
    out[i + 16] = d * static_cast<float>(high(block[8 + i]) | fifth_bit(bits, i + 16)) + m;
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
      scale = low(packed[group + 4]) | packed[group - 4] >> 6 << 4;
      offset = high(packed[group + 4]) | packed[group] >> 6 << 4;
    }
  }
};

// Groups 2p and 2p + 1 are the low and the high halves of the same 32 bytes; `fifth` points to their fifth
// bits, bit 2p and 2p + 1 of 32 bytes, or is null.
void decode_groups(const Byte* block, const Byte* fifth, const Byte* quants, float* out) {
  const float d = half_at(block), e = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const GroupScales own(block + 4, group);
    const float scale = d * static_cast<float>(own.scale), offset = e * static_cast<float>(own.offset);
    for (int i = 0; i < 32; ++i) {
      const Byte byte = quants[group / 2 * 32 + i];
      const int above = fifth ? (fifth[i] >> group & 1) << 4 : 0;
      out[group * 32 + i] = scale * static_cast<float>((group % 2 ? high(byte) : low(byte)) | above) - offset;
    }
  }
}

void decode_q4_k(const Byte* block, float* out) { decode_groups(block, nullptr, block + 16, out); }
void decode_q5_k(const Byte* block, float* out) { decode_groups(block, block + 16, block + 48, out); }

// Per half of 128 numbers: the low four bits of numbers i, i + 32 in the low halves of 64 bytes, of i + 64,
// i + 96 in the high halves; the high two bits of the four in one byte.
void decode_q6_k(const Byte* block, float* out) {
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    const Byte *low_bits = block + 64 * half, *high_bits = block + 128 + 32 * half;
    for (int i = 0; i < 128; ++i) {
      const Byte byte = low_bits[i % 64];
      const int bits = (i < 64 ? low(byte) : high(byte)) | (high_bits[i % 32] >> (i / 32 * 2) & 3) << 4;
      const auto scale = static_cast<signed char>(block[192 + 8 * half + i / 16]);
      out[128 * half + i] = d * static_cast<float>(scale) * static_cast<float>(bits - 32);
    }
  }
}

// Decodes blocks one after the other.
template <auto decode_block>
void decode_all(const WeightFormatTraits& format, const Byte* blocks, std::span<float> out) {
  for (size_t done = 0; done < out.size(); done += static_cast<size_t>(format.block_elements)) {
    decode_block(blocks, out.data() + done);
    blocks += format.block_bytes;
  }
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
      return decode_all<decode_f32>(own, first, out);
    case WeightFormat::f16:
      return decode_all<decode_f16>(own, first, out);
    case WeightFormat::bf16:
      return decode_all<decode_bf16>(own, first, out);
    case WeightFormat::q8_0:
      return decode_all<decode_q8_0>(own, first, out);
    case WeightFormat::q4_0:
      return decode_all<decode_q4_0>(own, first, out);
    case WeightFormat::q4_1:
      return decode_all<decode_q4_1>(own, first, out);
    case WeightFormat::q5_0:
      return decode_all<decode_q5_0>(own, first, out);
    case WeightFormat::q5_1:
      return decode_all<decode_q5_1>(own, first, out);
    case WeightFormat::q4_k:
      return decode_all<decode_q4_k>(own, first, out);
    case WeightFormat::q5_k:
      return decode_all<decode_q5_k>(own, first, out);
    case WeightFormat::q6_k:
      return decode_all<decode_q6_k>(own, first, out);
  }
}

}  // namespace kvbound::traces
