#include "elementwise.hpp"

#include <cassert>

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

Matrix quotient(Matrix matrix, double divisor) {
  for (int64_t i = 0; i < matrix.rows(); ++i) divide(matrix.row(i), divisor);
  return matrix;
}

}  // namespace kvbound::reference
