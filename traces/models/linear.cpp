#include "linear.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/numerics/product.hpp>

namespace kvbound::traces {
namespace {

// Rows of a weight that are decoded and multiplied together: divisors of many models' dimensions. With
// many rows of x, a product spends its time well only if the weight's part is large, too; with few, all
// threads should have a part.
constexpr int64_t kManyWeightRows = 384, kFewWeightRows = 96;
constexpr int64_t kManyRows = 64;

std::vector<float> vector_of(const Weight& weight) {
  std::vector<float> numbers(weight.cols);
  weight.read(0, numbers);
  return numbers;
}

}  // namespace

void linear(const Weight& weight, SingleMatrixView x, MutableSingleMatrixView y, int64_t piece) {
  require_equal("columns of x", x.cols, "columns of the weight", weight.cols);
  require_equal("columns of y", y.cols, "rows of the weight", weight.rows);
  const int64_t most = std::min(piece, x.rows) < kManyRows ? kFewWeightRows : kManyWeightRows;
  const int64_t blocks = (weight.rows + most - 1) / most;
  reference::parallel_for(
      blocks, [] { return std::vector<float>(); },
      [&](std::vector<float>& block, int64_t b) {
        const int64_t first = b * most, rows = std::min(most, weight.rows - first);
        block.resize(rows * weight.cols);
        weight.read(first, block);
        const SingleMatrixView part(block.data(), rows, weight.cols);
        for (int64_t i = 0; i < x.rows; i += piece) {
          const int64_t count = std::min(piece, x.rows - i);
          reference::multiply_transposed(x.middle_rows(i, count), part,
                                         y.middle_rows(i, count).middle_cols(first, rows));
        }
      });
}

void add_bias(const Weight& bias, MutableSingleMatrixView x) {
  require_equal("columns of x", x.cols, "numbers of the bias", bias.cols);
  const std::vector<float> numbers = vector_of(bias);
  reference::parallel_for(x.rows, [&](int64_t i) {
    for (int64_t c = 0; c < x.cols; ++c) x(i, c) += numbers[c];
  });
}

void rms_norm(const Weight& weight, double epsilon, SingleMatrixView x, MutableSingleMatrixView y) {
  require_equal("columns of x", x.cols, "numbers of the norm", weight.cols);
  const std::vector<float> scale = vector_of(weight);
  reference::parallel_for(x.rows, [&](int64_t i) {
    double squares = 0;
    for (const float number : x.row(i)) squares += double{number} * number;
    const double length = std::sqrt(squares / static_cast<double>(x.cols) + epsilon);
    for (int64_t c = 0; c < x.cols; ++c) y(i, c) = static_cast<float>(x(i, c) / length) * scale[c];
  });
}

void swish_gate(MutableSingleMatrixView gate, SingleMatrixView up) {
  reference::parallel_for(
      gate.rows, [&] { return std::vector<double>(gate.cols); },
      [&](std::vector<double>& exponentials, int64_t i) {
        std::ranges::transform(gate.row(i), exponentials.begin(),
                               [](float number) { return -double{number}; });
        reference::exponentiate(std::span<double>(exponentials), 0);
        for (int64_t c = 0; c < gate.cols; ++c) {
          gate(i, c) = static_cast<float>(gate(i, c) / (1 + exponentials[c])) * up(i, c);
        }
      });
}

void add(MutableSingleMatrixView x, SingleMatrixView y) {
  reference::parallel_for(x.rows, [&](int64_t i) {
    for (int64_t c = 0; c < x.cols; ++c) x(i, c) += y(i, c);
  });
}

}  // namespace kvbound::traces
