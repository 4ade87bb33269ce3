#include "full_cache.hpp"

#include <algorithm>

namespace kvbound::reference {
namespace {

std::vector<Matrix> matrices_of(TensorView tensor) {
  std::vector<Matrix> matrices;
  for (int64_t g = 0; g < tensor.slices; ++g) {
    Matrix matrix(tensor.rows, tensor.cols);
    std::copy_n(tensor.slice(g).data, tensor.rows * tensor.cols, matrix.data());
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

Tensor tensor_of(const std::vector<Matrix>& matrices) {
  const Matrix& first = matrices.front();
  Tensor tensor(std::ssize(matrices), first.rows(), first.cols());
  double* next = tensor.data();
  for (const Matrix& matrix : matrices) next = std::ranges::copy(matrix.numbers(), next).out;
  return tensor;
}

}  // namespace

FullCache::FullCache(const LayerView& layer)
    : layer_(layer), keys_(matrices_of(layer.keys)), values_(matrices_of(layer.values)) {}

void FullCache::append(const StepView& view) {
  for (size_t g = 0; g < keys_.size(); ++g) {
    keys_[g].append_row(view.keys.row(g));
    values_[g].append_row(view.values.row(g));
  }
  queries_ = Matrix(view.queries.rows, view.queries.cols);
  for (int64_t h = 0; h < queries_.rows(); ++h)
    std::ranges::copy(view.queries.row(h), queries_.row(h).begin());
}

LayerView FullCache::layer() {
  all_keys_ = tensor_of(keys_);
  all_values_ = tensor_of(values_);
  LayerView layer = layer_;
  layer.keys = all_keys_;
  layer.values = all_values_;
  layer.bits = {};
  layer.queries = {queries_.data(), queries_.rows(), 1, queries_.cols(), queries_.cols()};
  return layer;
}

}  // namespace kvbound::reference
