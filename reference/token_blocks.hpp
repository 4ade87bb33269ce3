// Tokens are worked on in blocks of one fixed size, the last one padded with zero rows.
//
// A product's rounding depends on which code path of the BLAS kernel a row falls into. With equal blocks
// every token takes the same path, so two tokens with the same numbers get the same result to the last bit:
// ties stay ties, wherever the tokens stand and however many follow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/view.hpp"

namespace kvbound::reference {

inline constexpr int64_t kTokenBlock = 256;

constexpr int64_t token_blocks(int64_t tokens) { return (tokens + kTokenBlock - 1) / kTokenBlock; }

/// Block `index` of some tokens' rows, always kTokenBlock rows; the last `kTokenBlock - count` are zero.
struct TokenBlock {
  TokenBlock(MatrixView tokens, int64_t index)
      : first(index * kTokenBlock), count(std::min(kTokenBlock, tokens.rows - first)) {
    if (count == kTokenBlock) {
      rows = tokens.middle_rows(first, count);
      return;
    }
    padded_ = Matrix(kTokenBlock, tokens.cols);
    for (int64_t i = 0; i < count; ++i) std::ranges::copy(tokens.row(first + i), padded_.row(i).begin());
    rows = padded_;
  }
  TokenBlock(const TokenBlock&) = delete;
  TokenBlock& operator=(const TokenBlock&) = delete;

  int64_t first;
  int64_t count;
  MatrixView rows;  ///< [kTokenBlock, cols]

 private:
  Matrix padded_;
};

}  // namespace kvbound::reference
