#include "h2o.hpp"

#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/parallel.hpp>

#include "window_logits.hpp"

namespace kvbound::reference {
namespace {

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

}  // namespace

Matrix accumulated_attention(const LayerView& layer, int64_t window) {
  Matrix sum(layer.shape.query_heads, layer.prompt_tokens());
  const std::vector<HeadBlock> blocks = head_blocks(layer.shape);
  parallel_for(
      static_cast<int64_t>(blocks.size()), [&] { return WindowLogits(layer, window); },
      [&](WindowLogits& logits, int64_t block) {
        visit_exponentials(logits, blocks[static_cast<size_t>(block)],
                           [&](int64_t head, VectorView exponentials, double total) {
                             add_quotients(exponentials, total, sum.row(head));
                           });
      });
  return sum;
}

}  // namespace kvbound::reference
