// How a checkpoint stores a matrix: plain numbers, or blocks of small integers with scales.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvbound::traces {

/// The names are ggml's. A block of q*_0 and q*_1 has 32 numbers, one of q*_k 256,
/// each with scales of its own:
///
///     q8_0, q4_0, q5_0  d q            d: FP16; q: signed, of 8, 4 or 5 bits
///     q4_1, q5_1        d q + m        d, m: FP16; q: unsigned
///     q4_k, q5_k        d s q - e t    d, e: FP16 of the block; s, t: 6 bits, of 32 numbers; q: unsigned
///     q6_k              d s q          d: FP16 of the block; s: signed, 8 bits, of 16 numbers; q: 6 bits
enum class WeightFormat { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };

struct WeightFormatTraits {
  WeightFormat format;
  std::string_view name;   ///< as ggml writes it
  uint32_t ggml_type;      ///< its number in GGUF files
  int64_t block_elements;  ///< a row has whole blocks
  int64_t block_bytes;
};

inline constexpr std::array<WeightFormatTraits, 11> kWeightFormats{{
    {WeightFormat::f32, "F32", 0, 1, 4},
    {WeightFormat::f16, "F16", 1, 1, 2},
    {WeightFormat::bf16, "BF16", 30, 1, 2},
    {WeightFormat::q8_0, "Q8_0", 8, 32, 34},
    {WeightFormat::q4_0, "Q4_0", 2, 32, 18},
    {WeightFormat::q4_1, "Q4_1", 3, 32, 20},
    {WeightFormat::q5_0, "Q5_0", 6, 32, 22},
    {WeightFormat::q5_1, "Q5_1", 7, 32, 24},
    {WeightFormat::q4_k, "Q4_K", 12, 256, 144},
    {WeightFormat::q5_k, "Q5_K", 13, 256, 176},
    {WeightFormat::q6_k, "Q6_K", 14, 256, 210},
}};

constexpr const WeightFormatTraits& traits(WeightFormat format) {
  return kWeightFormats[static_cast<size_t>(format)];
}

constexpr std::optional<WeightFormat> weight_format_of_ggml(uint32_t type) {
  for (const WeightFormatTraits& candidate : kWeightFormats) {
    if (candidate.ggml_type == type) return candidate.format;
  }
  return std::nullopt;
}

/// The name of a type of ggml's that is not among these, such as "IQ4_XS"; empty if there is none.
std::string_view other_ggml_type(uint32_t type);

/// The numbers of whole blocks, as ggml decodes them: products are exact, and the sum of two is rounded once.
///
/// blocks   bytes, as many as out.size() numbers take
/// out      whole blocks
/// throws   ShapeMismatch if the sizes do not fit. NaN and infinity are passed on
void decode(WeightFormat format, std::span<const char> blocks, std::span<float> out);

}  // namespace kvbound::traces
