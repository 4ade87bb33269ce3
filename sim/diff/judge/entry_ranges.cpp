#include "entry_ranges.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::sim {

RangedOutputs::RangedOutputs(VectorView weights, MatrixView values) : sums_{0.0} {
  outputs_.emplace_back(values.cols);
  for (int64_t j = 0; j < values.rows; ++j) {
    sums_.push_back(sums_.back() + weights[j]);
    std::vector<double> next = outputs_.back();
    for (int64_t c = 0; c < values.cols; ++c) next[c] += weights[j] * values(j, c);
    outputs_.push_back(std::move(next));
  }
}

std::vector<double> RangedOutputs::output(const EntryRange& range) const {
  const double more = range.times - 1;
  const double sum = sums_.back() + more * (sums_[range.last] - sums_[range.first]);
  std::vector<double> output = outputs_.back();
  for (size_t c = 0; c < output.size(); ++c) {
    output[c] = (output[c] + more * (outputs_[range.last][c] - outputs_[range.first][c])) / sum;
  }
  return output;
}

double RangedOutputs::distance(VectorView claimed, const EntryRange& range) const {
  const double more = range.times - 1;
  const double sum = sums_.back() + more * (sums_[range.last] - sums_[range.first]);
  if (!(sum > 0)) return kInfinity;
  double square = 0;
  for (size_t c = 0; c < claimed.size(); ++c) {
    const double output =
        (outputs_.back()[c] + more * (outputs_[range.last][c] - outputs_[range.first][c])) / sum;
    square += (output - claimed[c]) * (output - claimed[c]);
  }
  return square;
}

EntryRange RangedOutputs::nearest_pair(VectorView claimed, int times) const {
  constexpr int64_t kPlaces = 64;
  EntryRange best{0, tokens(), times};
  double least = kInfinity;
  const auto place = [&](int64_t i) { return i * tokens() / kPlaces; };
  for (int64_t i = 0; i < kPlaces; ++i) {
    for (int64_t k = i + 1; k <= kPlaces; ++k) {
      const EntryRange range{place(i), place(k), times};
      if (range.first == range.last || range.last - range.first == tokens()) continue;
      const double far = distance(claimed, range);
      if (far < least) least = far, best = range;
    }
  }
  return best;
}

EntryRange RangedOutputs::nearest(VectorView claimed, int times) const {
  constexpr int kTurns = 8;
  EntryRange best = nearest_pair(claimed, times);
  double least = distance(claimed, best);
  const auto take = [&](const EntryRange& range) {
    const double far = distance(claimed, range);
    if (far < least) least = far, best = range;
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    const EntryRange before = best;
    for (int64_t first = 0; first < before.last; ++first) take({first, before.last, times});
    const int64_t first = best.first;
    for (int64_t last = first + 1; last <= tokens(); ++last) take({first, last, times});
    if (best.first == before.first && best.last == before.last) break;
  }
  for (int64_t j = 0; j < tokens(); ++j) take({j, j + 1, times});
  return best;
}

}  // namespace kvbound::sim
