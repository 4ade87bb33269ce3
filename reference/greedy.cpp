#include "greedy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "attention.hpp"
#include "core/error.hpp"
#include "inner_product.hpp"
#include "product.hpp"
#include "snap_kv.hpp"

namespace kvbound::reference {
namespace {

// || N + A (o - v) ||^2
double squared_norm_with(double squared_change, double along, double weight, double distance) {
  const double norm = squared_change + weight * (2 * along + weight * distance);
  return norm < 0 ? 0 : norm;  // NaN stays
}

// The candidates that are still there, in any order, and what the judging queries know of them. Rows are the queries of
// the group's heads; N is a row's sum of A_e (o - v_e) over those who left.
class Remaining {
 public:
  Remaining(const LayerView& layer, int64_t kv_head, int64_t window, int64_t candidates)
      : values_(layer.values.slice(kv_head)), positions_(static_cast<size_t>(candidates)) {
    std::iota(positions_.begin(), positions_.end(), 0);
    Matrix all_weights;
    visit_window_attention(layer, kv_head, window,
                           [&](int64_t, VectorView weights) { all_weights.append_row(weights); });
    const int64_t rows = all_weights.rows();
    outputs_ = Matrix(rows, values_.cols);
    multiply(all_weights, values_, outputs_.view());
    products_ = attention_logits(outputs_, values_.middle_rows(0, candidates), 1);
    for (Matrix* matrix : {&weights_, &distances_, &change_products_}) *matrix = Matrix(rows, candidates);
    changes_ = Matrix(rows, values_.cols);
    for (int64_t i = 0; i < rows; ++i) {
      const VectorView weights = all_weights.row(i);
      std::copy_n(weights.begin(), candidates, weights_.row(i).begin());
      others_.push_back(std::accumulate(weights.begin() + candidates, weights.end(), 0.0));
      for (int64_t j = 0; j < candidates; ++j) {
        distances_(i, j) = squared_distance(outputs_.row(i), values_.row(j));
      }
    }
  }

  // Takes out the one that is missed least; returns its position.
  int64_t remove_next() {
    const std::vector<double> errors = errors_without_each();
    size_t next = 0;
    for (size_t j = 1; j < errors.size(); ++j) {
      const bool tied = errors[j] == errors[next];
      if (errors[j] < errors[next] || (tied && positions_[j] > positions_[next])) next = j;
    }
    const int64_t position = positions_[next];
    remove(next);
    return position;
  }

 private:
  size_t count() const { return positions_.size(); }
  VectorView there(const Matrix& matrix, int64_t row) const { return matrix.row(row).first(count()); }

  // Per candidate: the sum over rows of || o' - o ||^2 if it leaves, too.
  std::vector<double> errors_without_each() const {
    std::vector<double> errors(count()), row(count());
    for (int64_t i = 0; i < weights_.rows(); ++i) {
      errors_without_each(i, row);
      for (size_t j = 0; j < row.size(); ++j) errors[j] += row[j];
    }
    if (std::ranges::any_of(errors, [](double error) { return std::isnan(error); })) {
      throw NonFinite("a removal error is no number: values are too large");
    }
    return errors;
  }

  // Of one row: || N + A_j (o - v_j) ||^2 / (R - A_j)^2.
  void errors_without_each(int64_t i, std::span<double> errors) const {
    const VectorView weights = there(weights_, i), distances = there(distances_, i),
                     change_products = there(change_products_, i), change = changes_.row(i);
    const double left = std::accumulate(weights.begin(), weights.end(), others_[static_cast<size_t>(i)]);
    if (!(left > 0)) {
      std::ranges::fill(errors, std::numeric_limits<double>::infinity());
      return;
    }
    const double squared_change = inner_product(change, change);
    const double along = inner_product(change, outputs_.row(i));
    for (size_t j = 0; j < errors.size(); ++j) {
      const double weight = weights[j], rest = left - weight;
      const double moved =
          squared_norm_with(squared_change, along - change_products[j], weight, distances[j]);
      errors[j] = moved / rest / rest;
    }
    mend_largest(i, left, squared_change, along, errors);
  }

  // The one entry of which left - weight may cancel, from the sum of the others.
  void mend_largest(int64_t i, double left, double squared_change, double along,
                    std::span<double> errors) const {
    const VectorView weights = there(weights_, i);
    const auto j = static_cast<size_t>(std::ranges::max_element(weights) - weights.begin());
    if (weights[j] <= left / 2) return;
    double rest = others_[static_cast<size_t>(i)];
    for (size_t other = 0; other < weights.size(); ++other) rest += other == j ? 0 : weights[other];
    const double moved = squared_norm_with(squared_change, along - there(change_products_, i)[j], weights[j],
                                           there(distances_, i)[j]);
    // What no double can tell from nothing left: missed more than anything.
    errors[j] = rest > 0 ? moved / rest / rest : std::numeric_limits<double>::infinity();
  }

  void remove(size_t leaving) {
    const VectorView value = values_.row(positions_[leaving]);
    std::vector<double> value_products;
    for (const int64_t position : positions_)
      value_products.push_back(inner_product(value, values_.row(position)));
    for (int64_t i = 0; i < weights_.rows(); ++i) {
      const double weight = weights_(i, static_cast<int64_t>(leaving));
      const std::span<double> change = changes_.row(i), change_products = change_products_.row(i);
      const VectorView output = outputs_.row(i), products = there(products_, i);
      for (size_t c = 0; c < change.size(); ++c) change[c] += weight * (output[c] - value[c]);
      for (size_t j = 0; j < count(); ++j) change_products[j] += weight * (products[j] - value_products[j]);
    }
    forget(leaving);
  }

  // The last one takes its place.
  void forget(size_t leaving) {
    const auto last = static_cast<int64_t>(count()) - 1, place = static_cast<int64_t>(leaving);
    for (Matrix* matrix : {&weights_, &distances_, &products_, &change_products_}) {
      for (int64_t i = 0; i < matrix->rows(); ++i) (*matrix)(i, place) = (*matrix)(i, last);
    }
    positions_[leaving] = positions_.back();
    positions_.pop_back();
  }

  MatrixView values_;               // [n, head_dim]
  std::vector<int64_t> positions_;  // of the candidates that are there: the first columns of the matrices
  Matrix weights_;                  // A [rows, candidates]
  Matrix distances_;                // || o - v_j ||^2 [rows, candidates]
  Matrix products_;                 // o . v_j [rows, candidates]
  Matrix change_products_;          // N . v_j [rows, candidates]
  Matrix outputs_;                  // o [rows, head_dim]
  Matrix changes_;                  // N [rows, head_dim]
  std::vector<double> others_;      // [rows]: the mass of who is no candidate
};

}  // namespace

std::vector<int64_t> removal_order(const LayerView& layer, int64_t kv_head, int64_t window,
                                   int64_t candidates, int64_t count) {
  if (count < 0 || count > candidates || candidates > layer.prompt_tokens()) {
    throw ShapeMismatch("cannot remove " + std::to_string(count) + " of " + std::to_string(candidates) +
                        " candidates among " + std::to_string(layer.prompt_tokens()) + " tokens");
  }
  std::vector<int64_t> order;
  if (count == 0) return order;
  Remaining remaining(layer, kv_head, window, candidates);
  for (int64_t i = 0; i < count; ++i) order.push_back(remaining.remove_next());
  return order;
}

}  // namespace kvbound::reference
