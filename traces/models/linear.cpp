#include "linear.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/single_exponential.hpp>

namespace kvbound::traces {
namespace {

// Some of a weight's rows, which are decoded and multiplied together.
struct Block {
  const WeightProducts& of;
  int64_t first, rows;
};

// Adds the blocks of a weight. Many rows of x are packed anew for every block, which should have many rows,
// too, and all as many. With few rows of x decoding takes most of the time: a block then stays in a core's
// own cache.
void add_blocks(const WeightProducts& of, bool many, std::vector<Block>& blocks) {
  constexpr int64_t kRows = 512, kFewNumbers = int64_t{1} << 16, kMultiple = 16;
  const int64_t rows = of.weight.rows,
                most = many ? kRows : std::max(kMultiple, kFewNumbers / of.weight.cols);
  const int64_t count = (rows + most - 1) / most;
  const int64_t share = ((rows + count - 1) / count + kMultiple - 1) / kMultiple * kMultiple;
  for (int64_t first = 0; first < rows; first += share) {
    blocks.push_back({of, first, std::min(share, rows - first)});
  }
}

std::vector<float> vector_of(const Weight& weight) {
  std::vector<float> numbers(weight.cols);
  weight.read(0, numbers);
  return numbers;
}

// In partial sums that the processor can form in parallel.
double sum_of_squares(std::span<const float> numbers) {
  std::array<double, 16> sums{};
  const size_t whole = numbers.size() / sums.size() * sums.size();
  for (size_t i = 0; i < whole; i += sums.size()) {
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += double{numbers[i + c]} * numbers[i + c];
  }
  for (const float number : numbers.subspan(whole)) sums[0] += double{number} * number;
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// gate[c] <- gate[c] / (1 + exp(-gate[c])) up[c], by exponentials of -|gate[c]|, which do not overflow.
void gate_numbers(std::span<float> gate, std::span<const float> exponentials, std::span<const float> up) {
  reference::with_widest_instructions([&]() __attribute__((always_inline)) {
    for (size_t c = 0; c < gate.size(); ++c) {
      const float numerator = gate[c] < 0 ? exponentials[c] : 1.0F;
      gate[c] = gate[c] * (numerator / (1 + exponentials[c])) * up[c];
    }
  });
}

}  // namespace

void linear(std::initializer_list<WeightProducts> products, SingleMatrixView x, int64_t piece) {
  constexpr int64_t kManyRows = 64;
  std::vector<Block> blocks;
  for (const WeightProducts& of : products) {
    require_equal("columns of x", x.cols, "columns of the weight", of.weight.cols);
    require_equal("columns of y", of.y.cols, "rows of the weight", of.weight.rows);
    add_blocks(of, std::min(piece, x.rows) >= kManyRows, blocks);
  }
  reference::parallel_for(
      std::ssize(blocks), [] { return std::vector<float>(); },
      [&](std::vector<float>& numbers, int64_t b) {
        const auto& [of, first, rows] = blocks[b];
        numbers.resize(rows * x.cols);
        of.weight.read(first, numbers);
        const SingleMatrixView part(numbers.data(), rows, x.cols);
        for (int64_t i = 0; i < x.rows; i += piece) {
          const int64_t count = std::min(piece, x.rows - i);
          reference::multiply_transposed(x.middle_rows(i, count), part,
                                         of.y.middle_rows(i, count).middle_cols(first, rows));
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
    const double length = std::sqrt(sum_of_squares(x.row(i)) / static_cast<double>(x.cols) + epsilon);
    for (int64_t c = 0; c < x.cols; ++c) y(i, c) = static_cast<float>(x(i, c) / length) * scale[c];
  });
}

void swish_gate(MutableSingleMatrixView gate, SingleMatrixView up) {
  reference::parallel_for(
      gate.rows, [&] { return std::vector<float>(gate.cols); },
      [&](std::vector<float>& exponentials, int64_t i) {
        const std::span<float> own = gate.row(i);
        std::ranges::transform(own, exponentials.begin(), [](float number) { return -std::abs(number); });
        reference::exponentiate(std::span(exponentials), 0.0F);
        gate_numbers(own, exponentials, up.row(i));
      });
}

void add(MutableSingleMatrixView x, SingleMatrixView y) {
  reference::parallel_for(x.rows, [&](int64_t i) {
    for (int64_t c = 0; c < x.cols; ++c) x(i, c) += y(i, c);
  });
}

}  // namespace kvbound::traces
