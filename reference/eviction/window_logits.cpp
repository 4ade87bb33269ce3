#include "window_logits.hpp"

#include <algorithm>
#include <string>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/numerics/elementwise.hpp>

namespace kvbound::reference {
namespace {

// Query heads of one KV head, and queries per head, that are processed at a time. The weights in memory have
// at most kHeadBlock * kQueryBlock rows.
constexpr int64_t kHeadBlock = 4;
constexpr int64_t kQueryBlock = 32;

int64_t recorded(const LayerView& layer, int64_t window) {
  if (window >= 1 && window <= layer.window_queries()) return window;
  throw ShapeMismatch("window is " + std::to_string(window) + " but " +
                      std::to_string(layer.window_queries()) + " prompt queries are recorded");
}

}  // namespace

std::vector<HeadBlock> head_blocks(const LayerShape& shape, int64_t kv_head) {
  std::vector<HeadBlock> blocks;
  for (int64_t h = 0; h < shape.group_size(); h += kHeadBlock) {
    blocks.push_back({kv_head * shape.group_size() + h, std::min(kHeadBlock, shape.group_size() - h)});
  }
  return blocks;
}

std::vector<HeadBlock> head_blocks(const LayerShape& shape) {
  std::vector<HeadBlock> blocks;
  for (int64_t g = 0; g < shape.kv_heads; ++g) {
    for (const HeadBlock& heads : head_blocks(shape, g)) blocks.push_back(heads);
  }
  return blocks;
}

WindowLogits::WindowLogits(const LayerView& layer, int64_t window)
    : layer_(layer),
      window_(recorded(layer, window)),
      queries_(std::min(kHeadBlock, layer.shape.group_size()) * std::min(kQueryBlock, window),
               layer.shape.head_dim),
      logits_(Matrix::for_overwrite(queries_.rows(), layer.prompt_tokens())) {}

void WindowLogits::visit(const HeadBlock& heads, const std::function<void(const WindowLogitsBlock&)>& visit) {
  for (int64_t first = 0; first < window_; first += kQueryBlock) {
    visit_block(heads, layer_.window_queries() - window_ + first, std::min(kQueryBlock, window_ - first),
                visit);
  }
}

// Visits recorded queries first..first + count - 1.
void WindowLogits::visit_block(const HeadBlock& heads, int64_t first, int64_t count,
                               const std::function<void(const WindowLogitsBlock&)>& visit) {
  const int64_t rows = heads.count * count;
  WindowLogitsBlock block{heads, count, {}, {}, logits_.view().middle_rows(0, rows)};
  for (int64_t row = 0; row < rows; ++row) {
    const MatrixView queries = layer_.queries.slice(heads.first + row / count);
    std::ranges::copy(queries.row(first + row % count), queries_.row(row).begin());
    block.visible.push_back(layer_.prompt_tokens() - layer_.window_queries() + first + row % count + 1);
  }
  block.largest = attention_logits(queries_.view().middle_rows(0, rows),
                                   layer_.keys.slice(layer_.shape.kv_head_of(heads.first)), layer_.scale,
                                   block.visible, block.logits);
  visit(block);
}

void visit_window_attention(const LayerView& layer, int64_t kv_head, int64_t window,
                            const std::function<void(int64_t query_head, VectorView weights)>& visit) {
  WindowLogits logits(layer, window);
  for (const HeadBlock& heads : head_blocks(layer.shape, kv_head)) {
    visit_exponentials(logits, heads, [&](int64_t query_head, std::span<double> row, double sum) {
      divide(row, sum);
      visit(query_head, row);
    });
  }
}

Matrix window_attention_sums(const LayerView& layer, int64_t window) {
  Matrix sums = Matrix::for_overwrite(layer.shape.query_heads, layer.prompt_tokens());
  const std::vector<HeadBlock> blocks = head_blocks(layer.shape);
  parallel_for(
      std::ssize(blocks), [&] { return WindowLogits(layer, window); },
      [&](WindowLogits& logits, int64_t block) {
        set_zero(sums.view().middle_rows(blocks[block].first, blocks[block].count));
        visit_exponentials(logits, blocks[block], [&](int64_t head, VectorView exponentials, double total) {
          add_quotients(exponentials, total, sums.row(head));
        });
      });
  return sums;
}

}  // namespace kvbound::reference
