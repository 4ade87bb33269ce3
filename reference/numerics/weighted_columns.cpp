#include "weighted_columns.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>

#include <kvbound/reference/core/infinity.hpp>

#include "instruction_set.hpp"

namespace kvbound::reference {
namespace {

// Up to kLanes columns of a matrix.
struct ColumnBlock {
  MatrixView matrix;
  size_t first, count;

  // The numbers of one row, in whole vectors: `padded`, whose other numbers stay, where there are fewer.
  const double* row(int64_t j, double* padded) const {
    const double* const numbers = matrix.row(j).data() + first;
    if (count == kLanes) return numbers;
    std::copy_n(numbers, count, padded);
    return padded;
  }
};

// Visits the columns of a matrix at the widest level: visit(lanes, block).
template <class Visit>
void visit_columns(MatrixView matrix, const Visit& visit) {
  const auto columns = static_cast<size_t>(matrix.cols);
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        for (size_t first = 0; first < columns; first += kLanes)
          visit(lanes, ColumnBlock{matrix, first, std::min(kLanes, columns - first)});
      });
}

template <class L>
[[gnu::always_inline]] inline void store(const typename L::Reals* from, const ColumnBlock& block,
                                         std::span<double> to) {
  double numbers[kLanes];
  for (size_t v = 0; v < L::kVectors; ++v) L::store(from[v], numbers + v * L::kWidth);
  std::copy_n(numbers, block.count, to.begin() + static_cast<std::ptrdiff_t>(block.first));
}

template <class L>
[[gnu::always_inline]] inline void add_terms(const ColumnBlock& block, VectorView weights,
                                             WeightedColumns& result) {
  using Reals = typename L::Reals;
  double padded[kLanes] = {};
  Reals sum[L::kVectors] = {}, squares[L::kVectors] = {}, low[L::kVectors] = {}, high[L::kVectors] = {},
        signs[L::kVectors] = {}, aligned[L::kVectors] = {};
  const Reals zero = {}, one = zero + 1;
  for (int64_t j = 0; j < block.matrix.rows; ++j) {
    const double* const row = block.row(j, padded);
    for (size_t v = 0; v < L::kVectors; ++v) {
      Reals term;
      L::load(row + v * L::kWidth, term);
      term *= weights[j];
      sum[v] += term;
      squares[v] += term * term;
      low[v] = sum[v] < low[v] ? sum[v] : low[v];
      high[v] = sum[v] > high[v] ? sum[v] : high[v];
      const Reals negative = term < zero ? -one : zero, sign = term > zero ? one : negative;
      signs[v] += sign;
      aligned[v] += sign * sum[v];
    }
  }
  store<L>(sum, block, result.sums);
  store<L>(squares, block, result.squares);
  store<L>(low, block, result.low);
  store<L>(high, block, result.high);
  store<L>(signs, block, result.signs);
  store<L>(aligned, block, result.aligned);
}

template <class L>
[[gnu::always_inline]] inline void find_ranges(const ColumnBlock& block, ColumnRanges& result) {
  using Reals = typename L::Reals;
  double padded[kLanes] = {};
  Reals least[L::kVectors], most[L::kVectors];
  for (size_t v = 0; v < L::kVectors; ++v) {
    least[v] = Reals{} + kInfinity;
    most[v] = -least[v];
  }
  for (int64_t j = 0; j < block.matrix.rows; ++j) {
    const double* const row = block.row(j, padded);
    for (size_t v = 0; v < L::kVectors; ++v) {
      Reals numbers;
      L::load(row + v * L::kWidth, numbers);
      least[v] = numbers < least[v] ? numbers : least[v];
      most[v] = numbers > most[v] ? numbers : most[v];
    }
  }
  store<L>(least, block, result.least);
  store<L>(most, block, result.most);
}

template <class L, size_t factors>
[[gnu::always_inline]] inline void add_distances(const ColumnBlock& block, VectorView centre,
                                                 const VectorView* factor, Matrix& result) {
  using Reals = typename L::Reals;
  double padded[kLanes] = {};
  std::copy_n(centre.begin() + static_cast<std::ptrdiff_t>(block.first), block.count, padded);
  Reals middle[L::kVectors], sums[factors][L::kVectors] = {};
  for (size_t v = 0; v < L::kVectors; ++v) L::load(padded + v * L::kWidth, middle[v]);
  for (int64_t j = 0; j < block.matrix.rows; ++j) {
    const double* const row = block.row(j, padded);
    for (size_t v = 0; v < L::kVectors; ++v) {
      Reals numbers;
      L::load(row + v * L::kWidth, numbers);
      const Reals off = numbers - middle[v], distance = off < 0 ? -off : off;
      for (size_t k = 0; k < factors; ++k) sums[k][v] += factor[k][j] * distance;
    }
  }
  for (size_t k = 0; k < factors; ++k) store<L>(sums[k], block, result.row(static_cast<int64_t>(k)));
}

template <size_t factors>
void add_all_distances(MatrixView rows, VectorView centre, const VectorView* factor, Matrix& result) {
  visit_columns(
      rows, [&](auto lanes, const ColumnBlock& block) __attribute__((always_inline)) {
        add_distances<decltype(lanes), factors>(block, centre, factor, result);
      });
}

template <class L>
[[gnu::always_inline]] inline double product(const double* row, const double* direction, size_t columns) {
  typename L::Sums sums;
  double numbers[kLanes], factors[kLanes];
  for (size_t first = 0; first < columns; first += kLanes) {
    const size_t count = std::min(kLanes, columns - first);
    const double *a = row + first, *b = direction + first;
    if (count < kLanes) {
      std::fill_n(std::copy_n(a, count, numbers), kLanes - count, 0.0);
      std::fill_n(std::copy_n(b, count, factors), kLanes - count, 0.0);
      a = numbers;
      b = factors;
    }
    for (size_t v = 0; v < L::kVectors; ++v) {
      typename L::Reals x, y;
      L::load(a + v * L::kWidth, x);
      L::load(b + v * L::kWidth, y);
      sums.parts[v] += x * y;
    }
  }
  return sums.total();
}

}  // namespace

WeightedColumns weighted_columns(MatrixView rows, VectorView weights) {
  assert(std::ssize(weights) == rows.rows);
  const std::vector<double> none(static_cast<size_t>(rows.cols));
  WeightedColumns result{none, none, none, none, none, none};
  visit_columns(
      rows, [&](auto lanes, const ColumnBlock& block)
                __attribute__((always_inline)) { add_terms<decltype(lanes)>(block, weights, result); });
  return result;
}

ColumnRanges column_ranges(MatrixView rows) {
  const std::vector<double> none(static_cast<size_t>(rows.cols));
  ColumnRanges result{none, none};
  visit_columns(
      rows, [&](auto lanes, const ColumnBlock& block)
                __attribute__((always_inline)) { find_ranges<decltype(lanes)>(block, result); });
  return result;
}

Matrix weighted_distances(MatrixView rows, VectorView centre, std::span<const VectorView> factors) {
  Matrix result(std::ssize(factors), rows.cols);
  assert(1 <= factors.size() && factors.size() <= 4);
  constexpr std::array kAdd{add_all_distances<1>, add_all_distances<2>, add_all_distances<3>,
                            add_all_distances<4>};
  kAdd[factors.size() - 1](rows, centre, factors.data(), result);
  return result;
}

std::vector<double> row_products(MatrixView rows, VectorView direction) {
  std::vector<double> products(static_cast<size_t>(rows.rows));
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        for (int64_t j = 0; j < rows.rows; ++j)
          products[j] = product<decltype(lanes)>(rows.row(j).data(), direction.data(), direction.size());
      });
  return products;
}

}  // namespace kvbound::reference
