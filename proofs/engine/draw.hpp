// Random draws for instances.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::proofs {

/// Draws indices, sets of them, and numbers on a grid (multiples of `step`).
class Draw {
 public:
  explicit Draw(const rc::Random& random) : random_(random) {}

  int64_t index(int64_t count) { return static_cast<int64_t>(random_.next() % static_cast<uint64_t>(count)); }
  int64_t integer(int64_t low, int64_t high) { return low + index(high - low + 1); }
  double on_grid(double limit, double step) {
    const auto steps = static_cast<int64_t>(limit / step);
    return static_cast<double>(integer(-steps, steps)) * step;
  }
  /// `count` of the numbers 0..of-1, ascending; all such sets are equally likely.
  std::vector<int64_t> subset(int64_t of, int64_t count) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < of; ++i) {
      if (index(of - i) < count - std::ssize(result)) result.push_back(i);
    }
    return result;
  }
  std::vector<int64_t> permutation(int64_t count) {
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), int64_t{0});
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[index(static_cast<int64_t>(i))]);
    }
    return order;
  }
  void fill(MutableMatrixView matrix, double limit, double step) {
    for (int64_t i = 0; i < matrix.rows; ++i) {
      for (double& entry : matrix.row(i)) entry = on_grid(limit, step);
    }
  }

  template <class Kind, size_t count>
  Kind one_of(const Kind (&kinds)[count]) {
    return kinds[index(count)];
  }

 private:
  rc::Random random_;
};

}  // namespace kvbound::proofs
