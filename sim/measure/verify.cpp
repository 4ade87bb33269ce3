#include "verify.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kQueryBlock = 32;
constexpr double kSingle = 0x1p-24;  // unit roundoff of IEEE single precision
constexpr double kSingleSubnormal = 0x1p-149;

double gamma(int64_t roundings) {
  const double ku = static_cast<double>(roundings) * kSingle;
  return ku / (1 - ku);
}

// The format in which the model formed its outputs: single precision where they are stored
// with as many bits or more.
RealFormat output_format(Dtype dtype) { return *real_format(dtype == Dtype::f64 ? Dtype::f32 : dtype); }

std::vector<double> column_sums(MatrixView matrix) {
  std::vector<double> sums(matrix.cols, 0.0);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += matrix.row(i)[c];
  }
  return sums;
}

// Compares the outputs of consecutive queries of one head; `first` is a row of the recorded queries.
OutputAgreement compare_block(const traces::Layer& layer, int64_t h, int64_t first, int64_t count) {
  const int64_t g = layer.shape.kv_head_of(h);
  const int64_t position = layer.prompt_tokens - layer.window_queries + first;
  const MatrixView queries = layer.queries.slice(h).middle_rows(first, count);
  const MatrixView values = layer.values.slice(g);
  const Matrix weights = reference::attention_weights(queries, layer.keys.slice(g), layer.scale, position);
  const Matrix absolute_values = reference::absolute(values);
  const std::vector<double> value_sums = column_sums(absolute_values);
  const Matrix logit_sums = reference::attention_logits(
      reference::absolute(queries), reference::absolute(layer.keys.slice(g)), layer.scale);
  Matrix output(count, values.cols);
  Matrix output_sums(count, values.cols);
  reference::multiply(weights, values, output.view());
  reference::multiply(weights, absolute_values, output_sums.view());

  OutputAgreement worst;
  const RealFormat format = output_format(layer.attention_output_storage);
  const double unit = format.unit_roundoff();
  for (int64_t i = 0; i < count; ++i) {
    const auto visible = static_cast<double>(position + i + 1);
    const VectorView sums = logit_sums.row(i).first(position + i + 1);
    const double logit_error = gamma(layer.shape.head_dim + 4) * *std::ranges::max_element(sums);
    // Kept finite, so that 0 times it is 0, not NaN.
    const double weight_error =
        std::min(std::expm1(2 * logit_error + std::log1p(2 * gamma(position + i + 8))),
                 std::numeric_limits<double>::max());
    for (int64_t c = 0; c < output.cols(); ++c) {
      const double error = std::abs(layer.attention_output->slice(h)(first + i, c) - output(i, c));
      const double computed =
          weight_error * output_sums(i, c) + kSingleSubnormal * (visible + 1 + value_sums[c]);
      const double bound =
          computed * (1 + unit) + unit * std::abs(output(i, c)) + format.smallest_subnormal();
      const double share =
          std::isnan(error / bound) ? std::numeric_limits<double>::infinity() : error / bound;
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
  std::vector<OutputAgreement> pieces(layer.shape.query_heads * blocks);
  reference::parallel_for(std::ssize(pieces), [&](int64_t piece) {
    const int64_t first = piece % blocks * kQueryBlock;
    pieces[piece] = compare_block(layer, piece / blocks, first, std::min(kQueryBlock, rows - first));
  });
  return pieces.empty() ? OutputAgreement{}
                        : *std::ranges::max_element(pieces, {}, &OutputAgreement::worst_share);
}

}  // namespace kvbound::sim
