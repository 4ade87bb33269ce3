// Small random inputs for tests: a seed gives the same numbers on every platform (up to the last bit
// where a logarithm is taken).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <random>
#include <string>
#include <vector>

#include <rapidcheck.h>

#include <kvbound/reference/core/session.hpp>

#include "support/message_of.hpp"

namespace kvbound::test {

/// A matrix written out row by row.
Matrix matrix(std::initializer_list<std::vector<double>> rows);

/// Random numbers with few bits, so that they are the same on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  double uniform(double low, double high);                 ///< low + (high - low) * a multiple of 2^-32
  double normal();                                         ///< nearly: the sum of 12 uniforms, less 6
  int64_t index(int64_t count);                            ///< 0..count-1
  std::vector<int64_t> subset(int64_t of, int64_t count);  ///< `count` of 0..of-1, ascending
  Matrix matrix(int64_t rows, int64_t cols, double size = 1);
  Tensor tensor(int64_t slices, int64_t rows, int64_t cols, double size = 1);

 private:
  std::mt19937_64 engine_;
};

/// One layer with its decode steps.
struct RandomLayer {
  RandomLayer(LayerShape shape, int64_t tokens, int64_t window_queries, int64_t steps, uint64_t seed);

  LayerView view() const;
  StepView step(int64_t index) const;
  /// One KV head's keys or values over the prompt and steps 0..last.
  MatrixView keys(int64_t kv_head, int64_t last) const {
    return all_keys.slice(kv_head).middle_rows(0, tokens + last + 1);
  }
  MatrixView values(int64_t kv_head, int64_t last) const {
    return all_values.slice(kv_head).middle_rows(0, tokens + last + 1);
  }

  LayerShape shape;
  int64_t tokens;
  int64_t window_queries;
  Tensor all_keys;     ///< [kv_heads, tokens + steps, head_dim]
  Tensor all_values;   ///< [kv_heads, tokens + steps, head_dim]
  Tensor all_queries;  ///< [query_heads, window_queries + steps, head_dim]
  Matrix output_projection;
};

/// A multiple of 2^-10 that counterexamples print in full; shrinks to 0. Sums of a few dyadics are exact.
struct Dyadic {
  double value = 0;
};
std::ostream& operator<<(std::ostream& out, const Dyadic& number);
std::vector<double> numbers(const std::vector<Dyadic>& dyadics);

/// An integer in low..high, uniform at every rapidcheck size; shrinks to low.
rc::Gen<int64_t> integer(int64_t low, int64_t high);
/// A multiple of 2^-10 in -limit..limit.
rc::Gen<Dyadic> dyadic(int64_t limit);
/// Between min_size and max_size dyadics; about a third of the draws come from a grid so
/// coarse that ties are frequent.
rc::Gen<std::vector<Dyadic>> dyadics(int64_t min_size, int64_t max_size, int64_t limit);

}  // namespace kvbound::test
