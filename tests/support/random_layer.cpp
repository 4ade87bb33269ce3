#include "random_layer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <ostream>

namespace kvbound::test {

Matrix matrix(std::initializer_list<std::vector<double>> rows) {
  Matrix result;
  for (const std::vector<double>& row : rows) result.append_row(row);
  return result;
}

double Random::uniform(double low, double high) {
  return low + (high - low) * std::ldexp(static_cast<double>(engine_() >> 32), -32);
}

double Random::normal() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += uniform(0, 1);
  return sum;
}

int64_t Random::index(int64_t count) {
  return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count));
}

std::vector<int64_t> Random::subset(int64_t of, int64_t count) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < of; ++i) {
    // Selection sampling: `of - i` numbers are left, of which `count - size` are still wanted.
    if (index(of - i) < count - std::ssize(result)) result.push_back(i);
  }
  return result;
}

Matrix Random::matrix(int64_t rows, int64_t cols, double size) {
  Matrix result(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (double& entry : result.row(i)) entry = size * normal();
  }
  return result;
}

Tensor Random::tensor(int64_t slices, int64_t rows, int64_t cols, double size) {
  Tensor result(slices, rows, cols);
  for (double& entry : result.numbers()) entry = size * normal();
  return result;
}

RandomLayer::RandomLayer(LayerShape shape_, int64_t tokens_, int64_t window_queries_, int64_t steps,
                         uint64_t seed)
    : shape(shape_), tokens(tokens_), window_queries(window_queries_) {
  Random random(seed);
  // Keys of varied length make attention uneven; values of varied length make norms differ from weights.
  all_keys = random.tensor(shape.kv_heads, tokens + steps, shape.head_dim, 1.5);
  all_values = random.tensor(shape.kv_heads, tokens + steps, shape.head_dim);
  for (int64_t g = 0; g < shape.kv_heads; ++g) {
    for (int64_t i = 0; i < tokens + steps; ++i) {
      const double length = random.uniform(0.1, 2);
      for (double& entry : all_values.slice(g).row(i)) entry *= length;
    }
  }
  all_queries = random.tensor(shape.query_heads, window_queries + steps, shape.head_dim);
  output_projection = random.matrix(shape.query_heads * shape.head_dim, shape.model_dim, 0.3);
}

LayerView RandomLayer::view() const {
  return {shape,
          1 / std::sqrt(static_cast<double>(shape.head_dim)),
          all_keys.view().middle_rows(0, tokens),
          all_values.view().middle_rows(0, tokens),
          all_queries.view().middle_rows(0, window_queries),
          output_projection};
}

StepView RandomLayer::step(int64_t index) const {
  return {all_keys.view().row_of_slices(tokens + index), all_values.view().row_of_slices(tokens + index),
          all_queries.view().row_of_slices(window_queries + index)};
}

std::ostream& operator<<(std::ostream& out, const Dyadic& number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", number.value);
  return out << text.data();
}

std::vector<double> numbers(const std::vector<Dyadic>& dyadics) {
  std::vector<double> result;
  for (const Dyadic& number : dyadics) result.push_back(number.value);
  return result;
}

rc::Gen<int64_t> integer(int64_t low, int64_t high) {
  // At small sizes rapidcheck's inRange would only draw numbers near its lower end.
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

rc::Gen<Dyadic> dyadic(int64_t limit) {
  // 0, 1, -1, 2, -2, ...: shrinking the integer shrinks the number.
  return rc::gen::map(integer(0, limit * 2048), [](int64_t k) {
    return Dyadic{std::ldexp(static_cast<double>(k % 2 == 0 ? -k / 2 : (k + 1) / 2), -10)};
  });
}

rc::Gen<std::vector<Dyadic>> dyadics(int64_t min_size, int64_t max_size, int64_t limit) {
  return rc::gen::mapcat(rc::gen::pair(integer(min_size, max_size), integer(0, 2)), [=](const auto& drawn) {
    const auto size = static_cast<size_t>(drawn.first);
    const auto coarse =
        rc::gen::map(integer(-1, 1), [](int64_t k) { return Dyadic{static_cast<double>(k)}; });
    return rc::gen::container<std::vector<Dyadic>>(size, drawn.second == 0 ? coarse : dyadic(limit));
  });
}

}  // namespace kvbound::test
