#include "elementwise.hpp"

#include <cassert>

#include "column_blocks.hpp"
#include "instruction_set.hpp"

namespace kvbound::reference {

void divide(std::span<double> numbers, double divisor) {
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        size_t i = 0;
        for (; i + L::kWidth <= numbers.size(); i += L::kWidth) {
          typename L::Reals x;
          L::load(numbers.data() + i, x);
          L::store(x / divisor, numbers.data() + i);
        }
        for (; i < numbers.size(); ++i) numbers[i] /= divisor;
      });
}

void add(VectorView terms, std::span<double> sums) {
  assert(terms.size() == sums.size());
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        size_t j = 0;
        for (; j + L::kWidth <= sums.size(); j += L::kWidth) {
          typename L::Reals term, sum;
          L::load(terms.data() + j, term);
          L::load(sums.data() + j, sum);
          L::store(sum + term, sums.data() + j);
        }
        for (; j < sums.size(); ++j) sums[j] += terms[j];
      });
}

void add_quotients(VectorView numerators, double divisor, std::span<double> sums) {
  assert(numerators.size() == sums.size());
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        size_t j = 0;
        for (; j + L::kWidth <= sums.size(); j += L::kWidth) {
          typename L::Reals numerator, sum;
          L::load(numerators.data() + j, numerator);
          L::load(sums.data() + j, sum);
          L::store(sum + numerator / divisor, sums.data() + j);
        }
        for (; j < sums.size(); ++j) sums[j] += numerators[j] / divisor;
      });
}

void set_zero(MutableMatrixView numbers) {
  for (int64_t i = 0; i < numbers.rows; ++i) std::ranges::fill(numbers.row(i), 0.0);
}

Matrix quotient(MatrixView matrix, double divisor) {
  Matrix result = Matrix::for_overwrite(matrix.rows, matrix.cols);
  for_column_blocks(result.view(), [&](int64_t row, int64_t first, std::span<double> block) {
    std::ranges::copy(matrix.row(row).subspan(first, block.size()), block.begin());
    divide(block, divisor);
  });
  return result;
}

}  // namespace kvbound::reference
