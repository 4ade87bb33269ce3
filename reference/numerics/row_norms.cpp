#include "row_norms.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "instruction_set.hpp"
#include "product.hpp"
#include "token_blocks.hpp"

namespace kvbound::reference {
namespace {

// Columns of the product formed at a time: kTokenBlock x kColumnBlock doubles are 1 MiB, which fits into the
// second-level cache of most server processors.
constexpr int64_t kColumnBlock = 512;

Matrix product_block(MatrixView matrix) { return {kTokenBlock, std::min(kColumnBlock, matrix.cols)}; }

// Adds |x| or x^2 of kLanes numbers.
template <Norm norm, class L>
[[gnu::always_inline]] inline void add_terms(const double* numbers, typename L::Sums& sums) {
  using Reals = typename L::Reals;
  for (size_t v = 0; v < L::kVectors; ++v) {
    Reals x;
    L::load(numbers + v * L::kWidth, x);
    if constexpr (norm == Norm::l1) {
      sums.parts[v] += (Reals)((typename L::Bits)x & ~(uint64_t{1} << 63));  // |x|: the sign bit cleared
    } else {
      sums.parts[v] += x * x;
    }
  }
}

// sums[i] += sum_j |rows[i, j]| or rows[i, j]^2
template <Norm norm>
void add_row_sums(MatrixView rows, std::span<double> sums) {
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        const size_t columns = static_cast<size_t>(rows.cols);
        const size_t whole = columns / kLanes * kLanes;
        for (size_t i = 0; i < sums.size(); ++i) {
          const double* row = rows.row(i).data();
          typename L::Sums terms;
          for (size_t j = 0; j < whole; j += kLanes) add_terms<norm, L>(row + j, terms);
          if (whole < columns) {
            double rest[kLanes] = {};
            std::copy(row + whole, row + columns, rest);
            add_terms<norm, L>(rest, terms);
          }
          sums[i] += terms.total();
        }
      });
}

// The norms of one block of tokens. projected: product_block, overwritten.
template <Norm norm>
void block_norms(const TokenBlock& block, MatrixView matrix, Matrix& projected, std::span<double> norms) {
  std::ranges::fill(norms, 0.0);
  for (int64_t first = 0; first < matrix.cols; first += kColumnBlock) {
    const int64_t columns = std::min(kColumnBlock, matrix.cols - first);
    const MutableMatrixView product = projected.view().middle_cols(0, columns);
    multiply(block.rows, matrix.middle_cols(first, columns), product);
    add_row_sums<norm>(product, norms);
  }
  if constexpr (norm == Norm::l2) {
    for (double& entry : norms) entry = std::sqrt(entry);
  }
}

void block_norms(const RowProduct& product, int64_t block_index, Norm norm, Matrix& projected,
                 std::span<double> all_norms) {
  const TokenBlock block(product.rows, block_index);
  const auto norms = all_norms.subspan(block.first, block.count);
  switch (norm) {
    case Norm::l1:
      return block_norms<Norm::l1>(block, product.matrix, projected, norms);
    case Norm::l2:
      return block_norms<Norm::l2>(block, product.matrix, projected, norms);
  }
}

}  // namespace

std::vector<double> row_norms(MatrixView rows, MatrixView matrix, Norm norm) {
  const RowProduct product{rows, matrix};
  require_equal("columns of the rows", rows.cols, "rows of the matrix", matrix.rows);
  std::vector<double> norms(rows.rows);
  Matrix projected = product_block(matrix);
  for (int64_t b = 0; b < token_blocks(rows.rows); ++b) block_norms(product, b, norm, projected, norms);
  return norms;
}

Matrix row_norms(std::span<const RowProduct> products, Norm norm) {
  if (products.empty()) return {};
  const int64_t tokens = products.front().rows.rows, blocks = token_blocks(tokens);
  for (const RowProduct& product : products) {
    require_equal("columns of the rows", product.rows.cols, "rows of the matrix", product.matrix.rows);
    require_equal("rows of a product", product.rows.rows, "rows of the first product", tokens);
  }
  Matrix norms(std::ssize(products), tokens);
  parallel_for(
      std::ssize(products) * blocks, [&] { return product_block(products.front().matrix); },
      [&](Matrix& projected, int64_t piece) {
        const int64_t index = piece / blocks;
        block_norms(products[index], piece % blocks, norm, projected, norms.row(index));
      });
  return norms;
}

}  // namespace kvbound::reference
