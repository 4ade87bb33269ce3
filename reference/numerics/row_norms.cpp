#include "row_norms.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "gram_norms.hpp"
#include "instruction_set.hpp"
#include "product.hpp"
#include "token_blocks.hpp"

namespace kvbound::reference {
namespace {

// Columns of the product formed at a time: kTokenBlock x kColumnBlock doubles are 1 MiB, which fits into the
// second-level cache of most server processors.
constexpr int64_t kColumnBlock = 512;

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

// The norms of one block of tokens, from the product itself.
//
// projected  [kTokenBlock, up to kColumnBlock], overwritten
template <Norm norm>
void direct_norms(MatrixView rows, MatrixView matrix, Matrix& projected, std::span<double> norms) {
  std::ranges::fill(norms, 0.0);
  for (int64_t first = 0; first < matrix.cols; first += kColumnBlock) {
    const int64_t columns = std::min(kColumnBlock, matrix.cols - first);
    const MutableMatrixView product = projected.view().middle_cols(0, columns);
    multiply(rows, matrix.middle_cols(first, columns), product);
    add_row_sums<norm>(product, norms);
  }
  if constexpr (norm == Norm::l2) {
    for (double& entry : norms) entry = std::sqrt(entry);
  }
}

// A thread's working memory.
struct NormsMemory {
  NormsMemory(MatrixView matrix, Norm norm) : projected(kTokenBlock, std::min(kColumnBlock, matrix.cols)) {
    if (norm == Norm::l1) return;
    gram_products = Matrix(kTokenBlock, matrix.rows);
    doubtful = Matrix(kTokenBlock, matrix.rows);
  }

  Matrix projected;
  Matrix gram_products;
  Matrix doubtful;  // rows whose norms are computed directly; those beyond are of former blocks, or zero
};

// The norms of one block of tokens by the Gram matrix, and directly where that may be inaccurate.
void gram_norms(MatrixView rows, MatrixView matrix, const GramNorms& gram, NormsMemory& memory,
                std::span<double> norms) {
  gram.fill(rows, memory.gram_products.view(), norms);
  std::vector<size_t> places;
  for (size_t i = 0; i < norms.size(); ++i) {
    if (!std::isnan(norms[i])) continue;
    std::ranges::copy(rows.row(static_cast<int64_t>(i)), memory.doubtful.row(std::ssize(places)).begin());
    places.push_back(i);
  }
  if (places.empty()) return;
  std::vector<double> direct(places.size());
  direct_norms<Norm::l2>(memory.doubtful, matrix, memory.projected, direct);
  for (size_t i = 0; i < places.size(); ++i) norms[places[i]] = direct[i];
}

// The norms of one block of tokens.
void block_norms(MatrixView rows, MatrixView matrix, const std::optional<GramNorms>& gram,
                 NormsMemory& memory, std::span<double> norms) {
  if (gram) {
    gram_norms(rows, matrix, *gram, memory, norms);
  } else {
    direct_norms<Norm::l1>(rows, matrix, memory.projected, norms);
  }
}

// The Gram matrices of the products' second factors, for norms that need them.
std::vector<std::optional<GramNorms>> gram_matrices(std::span<const RowProduct> products, Norm norm) {
  std::vector<std::optional<GramNorms>> grams(products.size());
  if (norm == Norm::l2) {
    parallel_for(std::ssize(products), [&](int64_t i) { grams[i].emplace(products[i].matrix); });
  }
  return grams;
}

}  // namespace

NormFactor::NormFactor(MatrixView matrix, Norm norm) : matrix_(matrix), norm_(norm) {
  if (norm == Norm::l2) gram_.emplace(matrix);
}

std::vector<double> NormFactor::row_norms(MatrixView rows) const {
  require_equal("columns of the rows", rows.cols, "rows of the matrix", matrix_.rows);
  std::vector<double> norms(static_cast<size_t>(rows.rows));
  parallel_for(
      token_blocks(rows.rows), [&] { return NormsMemory(matrix_, norm_); },
      [&](NormsMemory& memory, int64_t index) {
        const TokenBlock block(rows, index);
        block_norms(block.rows, matrix_, gram_, memory, std::span(norms).subspan(block.first, block.count));
      });
  return norms;
}

std::vector<double> row_norms(MatrixView rows, MatrixView matrix, Norm norm) {
  return NormFactor(matrix, norm).row_norms(rows);
}

Matrix row_norms(std::span<const RowProduct> products, Norm norm) {
  if (products.empty()) return {};
  const MatrixView first = products.front().matrix;
  const int64_t tokens = products.front().rows.rows, blocks = token_blocks(tokens);
  for (const RowProduct& product : products) {
    require_equal("columns of the rows", product.rows.cols, "rows of the matrix", product.matrix.rows);
    require_equal("rows of a product", product.rows.rows, "rows of the first product", tokens);
    require_equal("rows of a matrix", product.matrix.rows, "rows of the first matrix", first.rows);
    require_equal("columns of a matrix", product.matrix.cols, "columns of the first matrix", first.cols);
  }
  const std::vector<std::optional<GramNorms>> grams = gram_matrices(products, norm);
  Matrix norms = Matrix::for_overwrite(std::ssize(products), tokens);
  parallel_for(
      std::ssize(products) * blocks, [&] { return NormsMemory(first, norm); },
      [&](NormsMemory& memory, int64_t piece) {
        const int64_t index = piece / blocks;
        const TokenBlock block(products[index].rows, piece % blocks);
        block_norms(block.rows, products[index].matrix, grams[index], memory,
                    norms.row(index).subspan(block.first, block.count));
      });
  return norms;
}

}  // namespace kvbound::reference
