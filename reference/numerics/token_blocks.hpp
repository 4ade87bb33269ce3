// Tokens are processed in blocks of equal size; the last block is padded with zero rows.
//
// A product's rounding depends on which code path of the BLAS kernel a row falls into. With equal blocks
// every token takes the same path, so two tokens with the same numbers get the same result to the last bit:
// ties remain ties at any two positions and, if the block size is fixed, for any number of tokens.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

inline constexpr int64_t kTokenBlock = 256;

/// The number of blocks of `size` tokens that hold all tokens.
constexpr int64_t token_blocks(int64_t tokens, int64_t size = kTokenBlock) {
  return (tokens + size - 1) / size;
}

/// The block size of products of a few queries with all tokens: about a sixteenth of the tokens, so that
/// padding the last block costs little, but at most 1024, beyond which the product does not get faster.
constexpr int64_t query_product_block(int64_t tokens) {
  constexpr int64_t kMost = 1024;
  return std::clamp(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens))) / 16, kTokenBlock,
                    kMost);
}

/// Block `index` of some tokens' rows, always `size` rows; the last `size - count` are zero.
struct TokenBlock {
  TokenBlock(MatrixView tokens, int64_t index, int64_t size = kTokenBlock)
      : first(index * size), count(std::min(size, tokens.rows - first)) {
    if (count == size) {
      rows = tokens.middle_rows(first, count);
      return;
    }
    padded_ = Matrix(size, tokens.cols);
    for (int64_t i = 0; i < count; ++i) std::ranges::copy(tokens.row(first + i), padded_.row(i).begin());
    rows = padded_;
  }
  TokenBlock(const TokenBlock&) = delete;
  TokenBlock& operator=(const TokenBlock&) = delete;

  int64_t first;
  int64_t count;
  MatrixView rows;  ///< [size, cols]

 private:
  Matrix padded_;
};

}  // namespace kvbound::reference
