#include "snap_kv.hpp"

#include <algorithm>
#include <string>

#include "attention.hpp"
#include "core/shape_check.hpp"
#include "exponential.hpp"
#include "instruction_set.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace kvbound::reference {
namespace {

// Query heads, of one KV head, and queries of each that are worked on at a time: bounds the weights in memory
// to this many rows.
constexpr int64_t kHeadBlock = 4;
constexpr int64_t kQueryBlock = 32;

// Query heads first..first + count - 1, which share a KV head.
struct HeadBlock {
  int64_t first = 0;
  int64_t count = 0;
};

std::vector<HeadBlock> head_blocks(const LayerShape& shape, int64_t kv_head) {
  std::vector<HeadBlock> blocks;
  for (int64_t h = 0; h < shape.group_size(); h += kHeadBlock) {
    blocks.push_back({kv_head * shape.group_size() + h, std::min(kHeadBlock, shape.group_size() - h)});
  }
  return blocks;
}

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
        size_t j = 0;
        for (; j + L::kWidth <= sums.size(); j += L::kWidth) {
          typename L::Reals numerator, sum;
          L::load(exponentials.data() + j, numerator);
          L::load(sums.data() + j, sum);
          L::store(sum + numerator / divisor, sums.data() + j);
        }
        for (; j < sums.size(); ++j) sums[j] += exponentials[j] / divisor;
      });
}

// The attention of some queries of some query heads of one KV head, whose keys are so read once for all of
// them. Memory to be used again for the next ones.
class WindowAttention {
 public:
  WindowAttention(const LayerView& layer, int64_t window)
      : layer_(layer),
        window_(window),
        queries_(std::min(kHeadBlock, layer.shape.group_size()) * std::min(kQueryBlock, window),
                 layer.shape.head_dim),
        logits_(static_cast<size_t>(queries_.rows() * layer.prompt_tokens())) {}

  // Calls visit(query head, exponentials, their sum) for each query: exp(z - largest z) of what it sees, [n].
  template <class Visit>
  void visit(const HeadBlock& heads, const Visit& visit) {
    for (int64_t first = 0; first < window_; first += kQueryBlock) {
      visit_block(heads, layer_.window_queries() - window_ + first, std::min(kQueryBlock, window_ - first),
                  visit);
    }
  }

 private:
  // Recorded queries first..first + count - 1.
  template <class Visit>
  void visit_block(const HeadBlock& heads, int64_t first, int64_t count, const Visit& visit) {
    const int64_t rows = heads.count * count;
    std::vector<int64_t> visible;
    for (int64_t row = 0; row < rows; ++row) {
      const MatrixView queries = layer_.queries.slice(heads.first + row / count);
      std::ranges::copy(queries.row(first + row % count), queries_.row(row).begin());
      visible.push_back(layer_.prompt_tokens() - layer_.window_queries() + first + row % count + 1);
    }
    const MutableMatrixView logits(logits_.data(), rows, layer_.prompt_tokens());
    const std::vector<double> largest = attention_logits(
        queries_.view().middle_rows(0, rows), layer_.keys.slice(layer_.shape.kv_head_of(heads.first)),
        layer_.scale, visible, logits);
    // Row by row, so that it is still in the processor's cache when it is looked at.
    for (int64_t row = 0; row < rows; ++row) {
      const auto index = static_cast<size_t>(row), seen = static_cast<size_t>(visible[index]);
      const double sum = exponentiate(logits.row(row).first(seen), largest[index]);
      std::ranges::fill(logits.row(row).subspan(seen), 0.0);
      visit(heads.first + row / count, logits.row(row), sum);
    }
  }

  const LayerView& layer_;
  int64_t window_;
  Matrix queries_;  // [query heads * queries, head_dim]
  Scratch logits_;  // [query heads * queries, n]
};

}  // namespace

void visit_window_attention(const LayerView& layer, int64_t kv_head, int64_t window,
                            const std::function<void(int64_t query_head, VectorView weights)>& visit) {
  require_window(layer, window);
  WindowAttention attention(layer, window);
  for (const HeadBlock& heads : head_blocks(layer.shape, kv_head)) {
    attention.visit(heads, [&](int64_t query_head, std::span<double> row, double sum) {
      for (double& entry : row) entry /= sum;
      visit(query_head, row);
    });
  }
}

Matrix window_attention(const LayerView& layer, int64_t window) {
  require_window(layer, window);
  Matrix mean(layer.shape.query_heads, layer.prompt_tokens());
  std::vector<HeadBlock> blocks;
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    for (const HeadBlock& heads : head_blocks(layer.shape, g)) blocks.push_back(heads);
  }
  parallel_for(
      static_cast<int64_t>(blocks.size()), [&] { return WindowAttention(layer, window); },
      [&](WindowAttention& attention, int64_t block) {
        const HeadBlock& heads = blocks[static_cast<size_t>(block)];
        attention.visit(heads, [&](int64_t head, VectorView exponentials, double sum) {
          add_quotients(exponentials, sum, mean.row(head));
        });
        for (int64_t h = heads.first; h < heads.first + heads.count; ++h) {
          for (double& entry : mean.row(h)) entry /= static_cast<double>(window);
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
