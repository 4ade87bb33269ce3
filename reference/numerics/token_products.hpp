// The products of a few queries with many tokens, in blocks of tokens whose size depends on
// the number of tokens alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include <kvbound/reference/core/view.hpp>

#include "product.hpp"
#include "token_blocks.hpp"

namespace kvbound::reference {

/// products[i, j] = scale * queries[i,:] . tokens[j,:], block by block. Equal tokens get equal
/// products to the last bit.
///
/// queries   [queries, inner]
/// tokens    [tokens, inner]
/// products  [queries, tokens]
/// visit     called with (first, count) when the columns first..first + count - 1 are filled in
template <class Visit>
void multiply_by_tokens(MatrixView queries, MatrixView tokens, double scale, MutableMatrixView products,
                        const Visit& visit) {
  const int64_t size = query_product_block(tokens.rows);
  for (int64_t b = 0; b < token_blocks(tokens.rows, size); ++b) {
    const TokenBlock block(tokens, b, size);
    const MutableMatrixView there = products.middle_cols(block.first, block.count);
    if (block.count == size) {
      multiply_transposed(queries, block.rows, there, scale);
    } else {
      Matrix padded(queries.rows, size);
      multiply_transposed(queries, block.rows, padded.view(), scale);
      for (int64_t i = 0; i < queries.rows; ++i) {
        std::ranges::copy(padded.row(i).first(block.count), there.row(i).begin());
      }
    }
    visit(block.first, block.count);
  }
}

}  // namespace kvbound::reference
