// Blocks that these tests pack by the description of each format are decoded to the numbers that went in.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/traces/models/weight_format.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::weight_format_test {
namespace {

using test::bytes_of;

std::string half(double number) { return bytes_of(to_float16(number)); }

// Pseudo-random integers in 0..most.
class Draws {
 public:
  explicit Draws(uint32_t seed) : state_(seed) {}
  int operator()(int most) {
    state_ = state_ * 1664525 + 1013904223;
    return static_cast<int>((state_ >> 8) % static_cast<uint32_t>(most + 1));
  }
  std::vector<int> several(int count, int most) {
    std::vector<int> numbers(count);
    for (int& number : numbers) number = (*this)(most);
    return numbers;
  }

 private:
  uint32_t state_;
};

std::string byte(int value) { return std::string(1, static_cast<char>(value)); }

std::vector<float> decoded(WeightFormat format, const std::string& bytes) {
  const WeightFormatTraits& own = traits(format);
  std::vector<float> out(std::ssize(bytes) / own.block_bytes * own.block_elements);
  decode(format, bytes, out);
  return out;
}

// The low four bits of 32 numbers: of number i and i + 16 in byte i.
std::string nibbles_of_32(const std::vector<int>& numbers) {
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += byte((numbers[i] & 15) | (numbers[i + 16] & 15) << 4);
  return bytes;
}
std::string fifth_bits_of_32(const std::vector<int>& numbers) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(numbers[i] >> 4 & 1) << i;
  return bytes_of(bits);
}

TEST(WeightFormat, PlainNumbersAreReadAsTheyAre) {
  EXPECT_EQ(decoded(WeightFormat::f32, bytes_of(1.5F) + bytes_of(-3e-30F)),
            (std::vector<float>{1.5F, -3e-30F}));
  EXPECT_EQ(decoded(WeightFormat::f16, half(1.5) + half(6e-8)), (std::vector<float>{1.5F, 0x1p-24F}));
  EXPECT_EQ(decoded(WeightFormat::bf16, bytes_of(to_bfloat16(-3e38)) + bytes_of(to_bfloat16(0.1))),
            (std::vector<float>{static_cast<float>(from_bfloat16(to_bfloat16(-3e38))),
                                static_cast<float>(from_bfloat16(to_bfloat16(0.1)))}));
}

TEST(WeightFormat, Q8_0HasSignedBytes) {
  std::string bytes = half(0.25);
  for (int i = 0; i < 32; ++i) bytes += byte(i == 0 ? -128 : 3 * i);
  const std::vector<float> numbers = decoded(WeightFormat::q8_0, bytes);
  EXPECT_EQ(numbers[0], -32);
  for (int i = 1; i < 32; ++i) EXPECT_EQ(numbers[i], 0.75F * static_cast<float>(i));
}

TEST(WeightFormat, FourBitsAreCentredOrHaveAnOffset) {
  Draws draw(1);
  const std::vector<int> q = draw.several(32, 15);
  const std::vector<float> centred = decoded(WeightFormat::q4_0, half(-0.5) + nibbles_of_32(q)),
                           moved = decoded(WeightFormat::q4_1, half(0.125) + half(-3) + nibbles_of_32(q));
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(centred[i], -0.5F * static_cast<float>(q[i] - 8));
    EXPECT_EQ(moved[i], 0.125F * static_cast<float>(q[i]) - 3);
  }
}

TEST(WeightFormat, FiveBitsHaveTheirFifthBitsInAWord) {
  Draws draw(2);
  const std::vector<int> q = draw.several(32, 31);
  const std::vector<float> centred =
                               decoded(WeightFormat::q5_0, half(2) + fifth_bits_of_32(q) + nibbles_of_32(q)),
                           moved = decoded(WeightFormat::q5_1,
                                           half(0.5) + half(7) + fifth_bits_of_32(q) + nibbles_of_32(q));
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(centred[i], 2 * static_cast<float>(q[i] - 16));
    EXPECT_EQ(moved[i], 0.5F * static_cast<float>(q[i]) + 7);
  }
}

// Eight scales and eight offsets of six bits in twelve bytes.
std::string packed_scales(const std::vector<int>& scales, const std::vector<int>& offsets) {
  std::array<int, 12> bytes{};
  for (int i = 0; i < 4; ++i) {
    bytes[i] = scales[i] | scales[i + 4] >> 4 << 6;
    bytes[i + 4] = offsets[i] | offsets[i + 4] >> 4 << 6;
    bytes[i + 8] = (scales[i + 4] & 15) | (offsets[i + 4] & 15) << 4;
  }
  std::string text;
  for (const int value : bytes) text += byte(value);
  return text;
}

// The low four bits of 256 numbers: groups of 32, two of them in the halves of the same 32 bytes.
std::string nibbles_of_256(const std::vector<int>& q) {
  std::string bytes;
  for (int i = 0; i < 128; ++i) {
    const int first = i / 32 * 64 + i % 32;
    bytes += byte((q[first] & 15) | (q[first + 32] & 15) << 4);
  }
  return bytes;
}

TEST(WeightFormat, Q4_KAndQ5_KHaveScalesAndOffsetsOfGroups) {
  Draws draw(3);
  for (const bool five : {false, true}) {
    const std::vector<int> q = draw.several(256, five ? 31 : 15), scales = draw.several(8, 63),
                           offsets = draw.several(8, 63);
    std::string fifth;
    for (int i = 0; i < 32 && five; ++i) {
      int bits = 0;
      for (int group = 0; group < 8; ++group) bits |= (q[group * 32 + i] >> 4 & 1) << group;
      fifth += byte(bits);
    }
    const std::vector<float> numbers =
        decoded(five ? WeightFormat::q5_k : WeightFormat::q4_k,
                half(0.25) + half(0.5) + packed_scales(scales, offsets) + fifth + nibbles_of_256(q));
    for (int i = 0; i < 256; ++i) {
      EXPECT_EQ(numbers[i], 0.25F * static_cast<float>(scales[i / 32] * q[i]) -
                                0.5F * static_cast<float>(offsets[i / 32]))
          << i;
    }
  }
}

TEST(WeightFormat, Q6_KHasSignedScalesOfSixteenNumbers) {
  Draws draw(4);
  const std::vector<int> q = draw.several(256, 63), scales = draw.several(16, 255);
  std::string low, high, signed_scales;
  for (int first : {0, 128}) {
    for (int i = 0; i < 64; ++i) low += byte((q[first + i] & 15) | (q[first + 64 + i] & 15) << 4);
  }
  for (int first : {0, 128}) {
    for (int i = 0; i < 32; ++i) {
      int bits = 0;
      for (int part = 0; part < 4; ++part) bits |= q[first + 32 * part + i] >> 4 << 2 * part;
      high += byte(bits);
    }
  }
  for (const int scale : scales) signed_scales += byte(scale - 128);
  const std::vector<float> numbers = decoded(WeightFormat::q6_k, low + high + signed_scales + half(-0.125));
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(numbers[i], -0.125F * static_cast<float>((scales[i / 16] - 128) * (q[i] - 32))) << i;
  }
}

TEST(WeightFormat, SeveralBlocksFollowEachOther) {
  Draws draw(5);
  for (const WeightFormatTraits& format : kWeightFormats) {
    std::string bytes;
    for (int64_t i = 0; i < 3 * format.block_bytes; ++i) bytes += byte(draw(63));  // as FP16: finite
    const std::vector<float> all = decoded(format.format, bytes);
    for (int block = 0; block < 3; ++block) {
      const std::vector<float> own =
          decoded(format.format, bytes.substr(static_cast<size_t>(block * format.block_bytes),
                                              static_cast<size_t>(format.block_bytes)));
      EXPECT_EQ(own, std::vector<float>(all.begin() + block * format.block_elements,
                                        all.begin() + (block + 1) * format.block_elements))
          << format.name;
    }
  }
}

TEST(WeightFormat, ScalesThatAreNoNumbersArePassedOn) {
  const std::string nan = bytes_of(uint16_t{0x7e00});
  EXPECT_TRUE(std::isnan(decoded(WeightFormat::q8_0, nan + std::string(32, 1))[31]));
  EXPECT_TRUE(std::isnan(decoded(WeightFormat::q4_1, half(1) + nan + std::string(16, 1))[0]));
  EXPECT_TRUE(std::isnan(decoded(WeightFormat::q6_k, std::string(208, 1) + nan)[255]));
}

TEST(WeightFormat, SizesMustFit) {
  std::vector<float> out(32);
  EXPECT_THROW(decode(WeightFormat::q4_1, std::string(19, 0), out), ShapeMismatch);
  EXPECT_THROW(decode(WeightFormat::q4_1, std::string(40, 0), out), ShapeMismatch);
  out.resize(31);
  EXPECT_THROW(decode(WeightFormat::q4_1, std::string(20, 0), out), ShapeMismatch);
}

TEST(WeightFormat, EveryTypeOfGgmlHasOneName) {
  for (uint32_t type = 0; type < 64; ++type) {
    EXPECT_FALSE(weight_format_of_ggml(type) && !other_ggml_type(type).empty()) << type;
  }
  EXPECT_EQ(weight_format_of_ggml(12), WeightFormat::q4_k);
  EXPECT_EQ(other_ggml_type(23), "IQ4_XS");
  for (size_t i = 0; i < kWeightFormats.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kWeightFormats[i].format), i)
        << "traits() reads the table by the format's number";
  }
}

}  // namespace
}  // namespace kvbound::traces::weight_format_test
