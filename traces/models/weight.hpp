// A matrix or vector of a checkpoint, which stays in its file until rows of it are read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <kvbound/traces/input_file.hpp>

#include "weight_format.hpp"

namespace kvbound::traces {

struct Weight {
  const InputFile* file = nullptr;  ///< outlives the object
  std::string name;
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;   ///< 1 for a vector
  int64_t cols = 0;   ///< whole blocks of the format
  int64_t begin = 0;  ///< of its data, bytes from the file's start

  int64_t row_bytes() const { return cols / traits(format).block_elements * traits(format).block_bytes; }

  /// Decodes whole rows. Safe to call from several threads at a time.
  ///
  /// out     [rows, cols]
  /// throws  TraceError if the file was truncated after it was opened, or a number or scale is NaN or
  ///         infinite; ShapeMismatch if there are fewer rows; IoError
  void read(int64_t first_row, std::span<float> out) const;
};

}  // namespace kvbound::traces
