// Keys that relate to each other in some way, of which some are alike.
#pragma once

#include <cstdint>
#include <string_view>

#include "support.hpp"

namespace kvbound::parity {

enum class Keys {
  random,
  duplicated,  ///< a few different keys only
  zero,        ///< every third key is zero
  equal,       ///< all, also those of different slices
  peaked,      ///< one number of each key is far larger than the others
  huge,        ///< their products overflow single precision
  tiny,        ///< their products underflow
  mixed,       ///< some huge, some tiny, some duplicated
  nearly_parallel,
  opposite,  ///< as nearly_parallel, but every other key negated: where those leave, all cosines are negative
};

inline std::string_view name(Keys kind) {
  constexpr std::string_view kNames[] = {"random", "duplicated", "zero",  "equal",           "peaked",
                                         "huge",   "tiny",       "mixed", "nearly parallel", "opposite"};
  return kNames[static_cast<size_t>(kind)];
}

/// huge       the size of huge keys, of which tiny ones are the inverse
/// different  how many keys of each slice are different where they are duplicated
inline Tensor keys_of(Keys kind, int64_t slices, int64_t rows, int64_t cols, double huge = 1e25,
                      int64_t different = 7) {
  Tensor keys = random_tensor(1, slices, rows, cols);
  for (int64_t s = 0; s < slices; ++s) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < cols; ++c) {
        double& number = keys.data()[(s * rows + i) * cols + c];
        if (kind == Keys::duplicated) number = keys.data()[(s * rows + i % different) * cols + c];
        if (kind == Keys::zero && i % 3 == 0) number = 0;
        if (kind == Keys::equal) number = keys.data()[c];
        if (kind == Keys::peaked && c == i % cols) number *= 1000;
        if (kind == Keys::huge) number *= huge;
        if (kind == Keys::tiny) number /= huge;
        if (kind == Keys::mixed && i >= 11) number = keys.data()[(s * rows + i % 11) * cols + c];
        if (kind == Keys::mixed && i == 3) number *= huge;
        if (kind == Keys::mixed && i == 8) number /= huge;
        if (kind == Keys::nearly_parallel || kind == Keys::opposite) number = 1 + number / 64;
        if (kind == Keys::opposite && i % 2 == 1) number = -number;
      }
    }
  }
  return keys;
}

}  // namespace kvbound::parity
