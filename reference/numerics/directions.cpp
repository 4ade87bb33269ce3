#include "directions.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "product.hpp"
#include "token_blocks.hpp"
#include "vectors.hpp"

namespace kvbound::reference {
namespace {

// Rows of each operand per block product: enough that packing them costs the product little, and few enough
// that their cosines are still in the processor's cache when they are visited.
constexpr int64_t kBlock = kTokenBlock, kOthers = 2 * kTokenBlock;

// The length norm * 2^exponent.
struct ScaledLength {
  double norm = 0;
  int exponent = 0;
};

// Scaling by a power of two is exact, so the result does not depend on whether a vector was scaled.
ScaledLength scaled_length(VectorView x) {
  constexpr double kLeast = 0x1p-800, kMost = 0x1p800;  // outside them, squares overflow or underflow
  const double square = inner_product(x, x);
  if (kLeast <= square && square <= kMost) return {std::sqrt(square), 0};
  require_finite("vector", x);
  const double largest = max_abs(x);
  if (largest == 0) return {};
  const int exponent = std::ilogb(largest);
  std::vector<double> scaled(x.begin(), x.end());
  for (double& number : scaled) number = std::scalbn(number, -exponent);
  return {std::sqrt(inner_product(scaled, scaled)), exponent};
}

std::vector<double> direction(VectorView x) {
  std::vector<double> result(x.size());
  fill_direction(x, result);
  return result;
}

// The directions of rows first, first + 1, ... of `rows`; rows of the result beyond the last row are zero.
void fill_directions(MatrixView rows, int64_t first, MutableMatrixView directions) {
  for (int64_t i = 0; i < directions.rows; ++i) {
    if (first + i < rows.rows) {
      fill_direction(rows.row(first + i), directions.row(i));
    } else {
      std::ranges::fill(directions.row(i), 0.0);
    }
  }
}

// The directions of all rows, padded to whole blocks.
Matrix direction_blocks(MatrixView rows) {
  Matrix blocks = Matrix::for_overwrite(token_blocks(rows.rows, kOthers) * kOthers, rows.cols);
  parallel_for(token_blocks(rows.rows, kOthers), [&](int64_t b) {
    fill_directions(rows, b * kOthers, blocks.view().middle_rows(b * kOthers, kOthers));
  });
  return blocks;
}

// A thread's working memory: the directions of a block of rows, and their cosines with a block of the others.
struct CosineBlock {
  explicit CosineBlock(int64_t cols) : directions(kBlock, cols), cosines(kBlock, kOthers) {}

  Matrix directions;
  Matrix cosines;
};

// Whether an inner product of vectors of these lengths can neither overflow nor underflow.
bool is_safe(double length, double other) {
  constexpr double kLeast = 0x1p-400, kMost = 0x1p400;
  return kLeast < length && length < kMost && kLeast < other && other < kMost;
}

}  // namespace

double length(VectorView x) {
  const ScaledLength scaled = scaled_length(x);
  return std::scalbn(scaled.norm, scaled.exponent);
}

void fill_direction(VectorView x, std::span<double> direction) {
  const ScaledLength size = scaled_length(x);
  for (size_t c = 0; c < x.size(); ++c) {
    const double number = size.exponent == 0 ? x[c] : std::scalbn(x[c], -size.exponent);
    direction[c] = size.norm == 0 ? 0 : number / size.norm;
  }
}

Matrix row_directions(MatrixView rows) {
  Matrix directions(rows.rows, rows.cols);
  fill_directions(rows, 0, directions.view());
  return directions;
}

double cosine(VectorView a, double length, VectorView b, double other_length) {
  if (length == 0 || other_length == 0) return 0;
  const double cosine = is_safe(length, other_length) ? inner_product(a, b) / (length * other_length)
                                                      : inner_product(direction(a), direction(b));
  return std::clamp(cosine, -1.0, 1.0);
}

void visit_cosines(MatrixView rows, MatrixView others,
                   const std::function<void(int64_t row, int64_t first, std::span<double> cosines)>& visit) {
  require_equal("columns of the rows", rows.cols, "columns of the others", others.cols);
  if (rows.rows == 0 || others.rows == 0) return;
  const Matrix directions = direction_blocks(others);
  parallel_for(
      token_blocks(rows.rows, kBlock), [&] { return CosineBlock(rows.cols); },
      [&](CosineBlock& work, int64_t b) {
        const int64_t first_row = b * kBlock, here = std::min(kBlock, rows.rows - first_row);
        fill_directions(rows, first_row, work.directions.view());
        for (int64_t first = 0; first < others.rows; first += kOthers) {
          multiply_transposed(work.directions, directions.view().middle_rows(first, kOthers),
                              work.cosines.view());
          const int64_t there = std::min(kOthers, others.rows - first);
          for (int64_t i = 0; i < here; ++i) visit(first_row + i, first, work.cosines.row(i).first(there));
        }
      });
}

}  // namespace kvbound::reference
