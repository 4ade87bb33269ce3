// One KV head whose attention can be computed by hand.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::test {

/// Keys are ln b_j in dimension 1: query e gives entry j the weight b_j^e / sum b^e. Query 1 weighs in
/// proportion to the bases, 0 equally, -1 in inverse proportion.
class PowerLayer {
 public:
  /// bases    [tokens + steps], > 0
  /// values   [tokens + steps]
  /// queries  per query head, [window_queries + steps]
  /// tokens   length of the prompt
  PowerLayer(const std::vector<double>& bases, const std::vector<double>& values,
             const std::vector<std::vector<double>>& queries, int64_t tokens)
      : tokens_(tokens),
        steps_(std::ssize(bases) - tokens),
        keys_(1, tokens + steps_, 1),
        values_(1, tokens + steps_, 1),
        queries_(std::ssize(queries), std::ssize(queries[0]), 1),
        output_projection_(std::ssize(queries), 1) {
    for (int64_t j = 0; j < tokens + steps_; ++j) {
      keys_.slice(0)(j, 0) = std::log(bases[j]);
      values_.slice(0)(j, 0) = values[j];
    }
    for (size_t h = 0; h < queries.size(); ++h) {
      const auto head = static_cast<int64_t>(h);
      for (size_t i = 0; i < queries[h].size(); ++i) {
        queries_.slice(head)(static_cast<int64_t>(i), 0) = queries[h][i];
      }
      output_projection_(head, 0) = 1;
    }
  }

  LayerView view() const {
    const auto heads = queries_.view().slices;
    return {{heads, 1, 1, 1},
            1,
            keys_.view().middle_rows(0, tokens_),
            values_.view().middle_rows(0, tokens_),
            queries_.view().middle_rows(0, queries_.view().rows - steps_),
            output_projection_};
  }
  StepView step(int64_t index) const {
    return {keys_.view().row_of_slices(tokens_ + index), values_.view().row_of_slices(tokens_ + index),
            queries_.view().row_of_slices(queries_.view().rows - steps_ + index)};
  }
  int64_t steps() const { return steps_; }

 private:
  int64_t tokens_, steps_;
  Tensor keys_, values_, queries_;
  Matrix output_projection_;
};

}  // namespace kvbound::test
