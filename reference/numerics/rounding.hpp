// Numbers rounded to the 16-bit storage formats, as float16.hpp rounds one, and single precision widened.
#pragma once

#include <cstdint>
#include <span>

#include <kvbound/reference/core/view.hpp>

#include "instruction_set.hpp"

namespace kvbound::reference {

/// rounded[r * row_stride + c] = to_float16(numbers(r, c)), also of infinities and NaN.
void round_to_float16(MatrixView numbers, uint16_t* rounded, int64_t row_stride,
                      InstructionSet level = instruction_set());
/// rounded[r * row_stride + c] = to_bfloat16(numbers(r, c)), likewise.
void round_to_bfloat16(MatrixView numbers, uint16_t* rounded, int64_t row_stride,
                       InstructionSet level = instruction_set());

/// widened[i] = numbers[i]; whether all are finite.
bool widen(std::span<const float> numbers, double* widened);

}  // namespace kvbound::reference
