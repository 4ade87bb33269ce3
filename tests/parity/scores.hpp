// Scores to select from, and device memory to select into.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/support/device.hpp>

#include "support.hpp"

namespace kvbound::parity {

/// softmax: attention scores, which lie within few powers of two; few_values: nearly all scores tie.
enum class ScoreKind { normal, softmax, peaked, few_values, equal, rising };
inline constexpr ScoreKind kScoreKinds[] = {ScoreKind::normal,     ScoreKind::softmax, ScoreKind::peaked,
                                            ScoreKind::few_values, ScoreKind::equal,   ScoreKind::rising};

inline const char* name_of(ScoreKind kind) {
  constexpr const char* kNames[] = {"normal", "softmax", "peaked", "few values", "equal", "rising"};
  return kNames[static_cast<size_t>(kind)];
}

inline std::vector<float> scores_of(ScoreKind kind, uint64_t seed, int64_t cols) {
  std::vector<float> scores;
  const Tensor normal = random_tensor(seed, 1, 1, cols);
  for (const double x : normal.numbers()) {
    const auto index = static_cast<double>(scores.size());
    const double score = kind == ScoreKind::softmax      ? std::exp(2 * x) / static_cast<double>(cols)
                         : kind == ScoreKind::peaked     ? std::exp(40 * x - 60)  // many underflow to 0
                         : kind == ScoreKind::few_values ? std::round(x)
                         : kind == ScoreKind::equal      ? 0.25
                         : kind == ScoreKind::rising     ? index
                                                         : x;
    scores.push_back(static_cast<float>(score));
  }
  return scores;
}

/// Device memory for a selection's result: every row has two spare numbers behind it,
/// and all are -1 at first.
class Indices {
 public:
  /// k  how many indices each row selects
  explicit Indices(std::vector<int64_t> k)
      : k_(std::move(k)),
        stride_(*std::ranges::max_element(k_) + 2),
        indices_(std::vector<int64_t>(k_.size() * static_cast<size_t>(stride_), -1)),
        status_(std::vector<int>{0}) {}

  /// first  added to every index
  cuda::SelectionResult result(int64_t first = 0) {
    return {indices_.data(), stride_, status_.data(), first};
  }

  /// Waits for the default stream. The test fails if the spare numbers behind a row were overwritten.
  std::vector<std::vector<int64_t>> rows() const {
    std::vector<int64_t> all(indices_.size());
    cuda::synchronise(nullptr);
    indices_.download(all);
    std::vector<std::vector<int64_t>> rows;
    for (size_t r = 0; r < k_.size(); ++r) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(r) * stride_;
      rows.emplace_back(first, first + k_[r]);
      EXPECT_TRUE(std::all_of(first + k_[r], first + stride_, [](int64_t i) { return i == -1; }))
          << "row " << r << " has more than k indices";
    }
    return rows;
  }
  int status() const {
    int status = -1;
    status_.download(std::span(&status, 1));
    return status;
  }

 private:
  std::vector<int64_t> k_;
  int64_t stride_;
  cuda::Buffer<int64_t> indices_;
  cuda::Buffer<int> status_;
};

}  // namespace kvbound::parity
