#include "verify.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/parallel.hpp>
#include <kvbound/reference/product.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kQueryBlock = 32;
constexpr double kSingle = 0x1p-24;  // unit roundoff of IEEE single precision

double gamma(int64_t roundings) {
  const double ku = static_cast<double>(roundings) * kSingle;
  return ku / (1 - ku);
}

double unit_roundoff(Dtype dtype) {
  if (dtype == Dtype::bf16) return 0x1p-8;
  return dtype == Dtype::f16 ? 0x1p-11 : kSingle;
}

Matrix absolute(MatrixView matrix) {
  Matrix result(matrix.rows, matrix.cols);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    std::ranges::transform(matrix.row(i), result.row(i).begin(), [](double x) { return std::abs(x); });
  }
  return result;
}

// Compares successive queries of one head; positions count from the first query's.
OutputAgreement compare_block(const traces::Layer& layer, int64_t h, int64_t first, int64_t count) {
  const int64_t g = layer.shape.kv_head_of(h);
  const int64_t position = layer.prompt_tokens - layer.window_queries + first;
  const MatrixView queries = layer.queries.slice(h).middle_rows(first, count);
  const MatrixView values = layer.values.slice(g);
  const Matrix weights = reference::attention_weights(queries, layer.keys.slice(g), layer.scale, position);
  const Matrix logit_sums =
      reference::attention_logits(absolute(queries), absolute(layer.keys.slice(g)), layer.scale);
  Matrix output(count, values.cols);
  Matrix output_sums(count, values.cols);
  reference::multiply(weights, values, output.view());
  reference::multiply(weights, absolute(values), output_sums.view());

  OutputAgreement worst;
  const double storage = unit_roundoff(layer.attention_output_storage);
  for (int64_t i = 0; i < count; ++i) {
    const VectorView visible = logit_sums.row(i).first(static_cast<size_t>(position + i + 1));
    const double logit_error = gamma(layer.shape.head_dim + 2) * *std::ranges::max_element(visible);
    const double weight_error = 2 * logit_error + 2 * gamma(position + i + 8);
    for (int64_t c = 0; c < output.cols(); ++c) {
      const double error = std::abs(layer.attention_output->slice(h)(first + i, c) - output(i, c));
      const double bound = weight_error * output_sums(i, c) + storage * std::abs(output(i, c));
      const double share = error == 0 ? 0 : error / bound;
      if (share <= worst.worst_share) continue;
      worst = {share, error, bound, h, first + i, c};
    }
  }
  return worst;
}

}  // namespace

OutputAgreement verify_attention_output(const traces::Layer& layer) {
  const int64_t rows = layer.queries.view().rows;
  const int64_t blocks = (rows + kQueryBlock - 1) / kQueryBlock;
  std::vector<OutputAgreement> pieces(static_cast<size_t>(layer.shape.query_heads * blocks));
  reference::parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t piece) {
    const int64_t first = piece % blocks * kQueryBlock;
    pieces[static_cast<size_t>(piece)] =
        compare_block(layer, piece / blocks, first, std::min(kQueryBlock, rows - first));
  });
  return pieces.empty() ? OutputAgreement{}
                        : *std::ranges::max_element(pieces, {}, &OutputAgreement::worst_share);
}

}  // namespace kvbound::sim
