#include "snap_kv.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "attention.hpp"
#include "exponential.hpp"
#include "instruction_set.hpp"
#include "parallel.hpp"
#include "shape_check.hpp"

namespace kvbound::reference {
namespace {

// Queries of each head worked on at a time: bounds the weights in memory to this many rows per query head.
constexpr int64_t kQueryBlock = 32;

void require_window(const LayerView& layer, int64_t window) {
  if (window >= 1 && window <= layer.window_queries()) return;
  throw ShapeMismatch("window is " + std::to_string(window) + " but " +
                      std::to_string(layer.window_queries()) + " prompt queries are recorded");
}

// sums[j] += exponentials[j] / divisor
void add_quotients(VectorView exponentials, double divisor, std::span<double> sums) {
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        constexpr size_t kWidth = kLanes / L::kVectors;
        size_t j = 0;
        for (; j + kWidth <= sums.size(); j += kWidth) {
          typename L::Reals numerator, sum;
          L::load(exponentials.data() + j, numerator);
          L::load(sums.data() + j, sum);
          L::store(sum + numerator / divisor, sums.data() + j);
        }
        for (; j < sums.size(); ++j) sums[j] += exponentials[j] / divisor;
      });
}

// The attention of some queries of all query heads of one KV head, whose keys are so read once. Memory to be
// used again for the next ones.
class GroupAttention {
 public:
  GroupAttention(const LayerView& layer, int64_t window)
      : queries_(layer.shape.group_size() * std::min(kQueryBlock, window), layer.shape.head_dim),
        logits_(std::make_unique_for_overwrite<double[]>(
            static_cast<size_t>(queries_.rows() * layer.prompt_tokens()))) {}

  // Calls visit(query head, exponentials, their sum) for each query: exp(z - largest z) of what it sees, [n].
  template <class Visit>
  void visit(const LayerView& layer, int64_t kv_head, int64_t window, const Visit& visit) {
    for (int64_t first = 0; first < window; first += kQueryBlock) {
      visit_block(layer, kv_head, layer.window_queries() - window + first,
                  std::min(kQueryBlock, window - first), visit);
    }
  }

 private:
  // Recorded queries first..first + count - 1.
  template <class Visit>
  void visit_block(const LayerView& layer, int64_t kv_head, int64_t first, int64_t count,
                   const Visit& visit) {
    const int64_t rows = layer.shape.group_size() * count;
    const int64_t first_head = kv_head * layer.shape.group_size();
    std::vector<int64_t> visible;
    for (int64_t row = 0; row < rows; ++row) {
      const MatrixView queries = layer.queries.slice(first_head + row / count);
      std::ranges::copy(queries.row(first + row % count), queries_.row(row).begin());
      visible.push_back(layer.prompt_tokens() - layer.window_queries() + first + row % count + 1);
    }
    const MutableMatrixView logits(logits_.get(), rows, layer.prompt_tokens());
    const std::vector<double> largest = attention_logits(
        queries_.view().middle_rows(0, rows), layer.keys.slice(kv_head), layer.scale, visible, logits);
    // Row by row, so that it is still in the processor's cache when it is looked at.
    for (int64_t row = 0; row < rows; ++row) {
      const auto index = static_cast<size_t>(row), seen = static_cast<size_t>(visible[index]);
      const double sum = exponentiate(logits.row(row).first(seen), largest[index]);
      std::ranges::fill(logits.row(row).subspan(seen), 0.0);
      visit(first_head + row / count, logits.row(row), sum);
    }
  }

  Matrix queries_;                    // [group_size * queries, head_dim]
  std::unique_ptr<double[]> logits_;  // [group_size * queries, n]
};

}  // namespace

void visit_window_attention(const LayerView& layer, int64_t kv_head, int64_t window,
                            const std::function<void(int64_t query_head, VectorView weights)>& visit) {
  require_window(layer, window);
  GroupAttention(layer, window)
      .visit(layer, kv_head, window, [&](int64_t query_head, std::span<double> row, double sum) {
        for (double& entry : row) entry /= sum;
        visit(query_head, row);
      });
}

Matrix window_attention(const LayerView& layer, int64_t window) {
  require_window(layer, window);
  Matrix mean(layer.shape.query_heads, layer.prompt_tokens());
  parallel_for(
      layer.shape.kv_heads, [&] { return GroupAttention(layer, window); },
      [&](GroupAttention& group, int64_t kv_head) {
        group.visit(layer, kv_head, window, [&](int64_t head, VectorView exponentials, double sum) {
          add_quotients(exponentials, sum, mean.row(head));
        });
        for (int64_t i = 0; i < layer.shape.group_size(); ++i) {
          for (double& entry : mean.row(kv_head * layer.shape.group_size() + i)) {
            entry /= static_cast<double>(window);
          }
        }
      });
  return mean;
}

Matrix max_pool(MatrixView scores, int64_t width) {
  if (width < 1 || width % 2 == 0) {
    throw ShapeMismatch("a pool of width " + std::to_string(width) + " has no middle; expected an odd width");
  }
  const int64_t reach = (width - 1) / 2;
  Matrix pooled(scores.rows, scores.cols);
  for (int64_t r = 0; r < scores.rows; ++r) {
    const VectorView row = scores.row(r);
    for (int64_t j = 0; j < scores.cols; ++j) {
      const int64_t first = std::max<int64_t>(0, j - reach);
      const int64_t last = std::min(scores.cols - 1, j + reach);
      pooled(r, j) = *std::max_element(row.begin() + first, row.begin() + last + 1);
    }
  }
  return pooled;
}

Matrix group_mean(MatrixView scores, int64_t group_size) {
  if (group_size < 1 || scores.rows % group_size != 0) {
    throw ShapeMismatch(std::to_string(scores.rows) + " query heads cannot be shared out in groups of " +
                        std::to_string(group_size));
  }
  Matrix mean(scores.rows / group_size, scores.cols);
  for (int64_t h = 0; h < scores.rows; ++h) {
    const VectorView row = scores.row(h);
    const std::span<double> sum = mean.row(h / group_size);
    for (size_t j = 0; j < row.size(); ++j) sum[j] += row[j];
  }
  for (int64_t g = 0; g < mean.rows(); ++g) {
    for (double& entry : mean.row(g)) entry /= static_cast<double>(group_size);
  }
  return mean;
}

}  // namespace kvbound::reference
