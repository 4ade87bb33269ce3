#include "greedy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "attention.hpp"
#include "core/shape_check.hpp"
#include "inner_product.hpp"
#include "product.hpp"
#include "snap_kv.hpp"

namespace kvbound::reference {
namespace {

// || (1 + s) D + s (o - v) ||^2; along: D . (o - v)
double squared_norm_with(double squared_change, double along, double s, double distance) {
  const double norm = (1 + s) * ((1 + s) * squared_change + 2 * s * along) + s * s * distance;
  return norm < 0 ? 0 : norm;  // NaN stays
}

// An entry that holds more than half of what is left of a row. The changes that it makes cancel, so what the row's output is
// without it is known by itself.
struct Lead {
  int64_t position = -1;  // -1: there is none
  double rest = 0;        // the mass of all others
  std::vector<double> output_without;
};

// The candidates that are still there, in any order, and what the judging queries know of them. Rows are the queries of
// the group's heads; D is how far a row's output is from that of the full cache.
class Remaining {
 public:
  Remaining(const LayerView& layer, int64_t kv_head, int64_t window, int64_t candidates)
      : values_(layer.values.slice(kv_head)), positions_(static_cast<size_t>(candidates)) {
    std::iota(positions_.begin(), positions_.end(), 0);
    Matrix all_weights;
    visit_window_attention(layer, kv_head, window,
                           [&](int64_t, VectorView weights) { all_weights.append_row(weights); });
    const int64_t rows = all_weights.rows(), others = values_.rows - candidates;
    for (Matrix* matrix : {&outputs_, &others_sums_, &changes_}) *matrix = Matrix(rows, values_.cols);
    multiply(all_weights, values_, outputs_.view());
    multiply(all_weights.view().middle_cols(candidates, others), values_.middle_rows(candidates, others),
             others_sums_.view());
    products_ = attention_logits(outputs_, values_.middle_rows(0, candidates), 1);
    for (Matrix* matrix : {&weights_, &distances_, &change_products_}) *matrix = Matrix(rows, candidates);
    leads_.resize(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      const VectorView weights = all_weights.row(i);
      std::copy_n(weights.begin(), candidates, weights_.row(i).begin());
      others_.push_back(std::accumulate(weights.begin() + candidates, weights.end(), 0.0));
      left_.push_back(1);
      for (int64_t j = 0; j < candidates; ++j) {
        distances_(i, j) = squared_distance(outputs_.row(i), values_.row(j));
      }
    }
    require_finite("squared distances of values from outputs", distances_.numbers());
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
  std::vector<double> errors_without_each() {
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

  // What a row's weights add up to without those of one entry; -1: with all.
  double mass_without(int64_t i, int64_t entry) const {
    const VectorView weights = there(weights_, i);
    const auto middle = weights.begin() + (entry < 0 ? 0 : entry);
    const double mass = std::accumulate(weights.begin(), middle, others_[static_cast<size_t>(i)]);
    return std::accumulate(middle + (entry < 0 ? 0 : 1), weights.end(), mass);
  }

  // Of one row: || (1 + s) D + s (o - v_j) ||^2, s = A_j / (R - A_j), R what is left.
  void errors_without_each(int64_t i, std::span<double> errors) {
    const VectorView weights = there(weights_, i), distances = there(distances_, i),
                     change_products = there(change_products_, i), change = changes_.row(i);
    const double left = left_[static_cast<size_t>(i)] = mass_without(i, -1);
    if (!(left > 0)) {
      std::ranges::fill(errors, std::numeric_limits<double>::infinity());
      return;
    }
    const double squared_change = inner_product(change, change);
    const double along = inner_product(change, outputs_.row(i));
    for (size_t j = 0; j < errors.size(); ++j) {
      const double s = weights[j] / (left - weights[j]);
      errors[j] = squared_norm_with(squared_change, along - change_products[j], s, distances[j]);
    }
    const int64_t lead = find_lead(i, left);
    if (lead < 0) return;
    // What no double can tell from nothing left: missed more than anything.
    const Lead& known = leads_[static_cast<size_t>(i)];
    errors[static_cast<size_t>(lead)] = known.rest > 0
                                            ? squared_distance(known.output_without, outputs_.row(i))
                                            : std::numeric_limits<double>::infinity();
  }

  // The row's lead, of which the output without it is then known; -1 for none.
  int64_t find_lead(int64_t i, double left) {
    Lead& lead = leads_[static_cast<size_t>(i)];
    const VectorView weights = there(weights_, i);
    const auto largest = std::ranges::max_element(weights) - weights.begin();
    if (weights[static_cast<size_t>(largest)] <= left / 2) {
      lead.position = -1;
      return -1;
    }
    const int64_t position = positions_[static_cast<size_t>(largest)];
    const double rest = mass_without(i, largest);
    if (lead.position != position) lead = {position, rest, output_without(i, largest, rest)};
    lead.rest = rest;
    return largest;
  }

  std::vector<double> output_without(int64_t i, int64_t entry, double mass) const {
    std::vector<double> output(others_sums_.row(i).begin(), others_sums_.row(i).end());
    for (size_t j = 0; j < count(); ++j) {
      if (static_cast<int64_t>(j) == entry) continue;
      const VectorView value = values_.row(positions_[j]);
      for (size_t c = 0; c < output.size(); ++c) output[c] += there(weights_, i)[j] * value[c];
    }
    for (double& entry_of_output : output) entry_of_output /= mass;
    return output;
  }

  void remove(size_t leaving) {
    const VectorView value = values_.row(positions_[leaving]);
    std::vector<double> value_products;
    for (const int64_t position : positions_)
      value_products.push_back(inner_product(value, values_.row(position)));
    for (int64_t i = 0; i < weights_.rows(); ++i) {
      if (leads_[static_cast<size_t>(i)].position == positions_[leaving]) {
        remove_lead(i);
      } else {
        remove(i, leaving, value, value_products);
      }
    }
    forget(leaving);
  }

  // Of one row, an entry that holds at most half of it.
  void remove(int64_t i, size_t leaving, VectorView value, VectorView value_products) {
    const double weight = there(weights_, i)[leaving], left = left_[static_cast<size_t>(i)];
    if (!(left > 0)) return;
    const double s = weight / (left - weight);
    const std::span<double> change = changes_.row(i), change_products = change_products_.row(i);
    const VectorView output = outputs_.row(i), products = there(products_, i);
    for (size_t c = 0; c < change.size(); ++c) change[c] = (1 + s) * change[c] + s * (output[c] - value[c]);
    for (size_t j = 0; j < count(); ++j) {
      change_products[j] = (1 + s) * change_products[j] + s * (products[j] - value_products[j]);
    }
    remove_beside_lead(i, weight, value);
  }

  // The output without the lead, when another entry leaves.
  void remove_beside_lead(int64_t i, double weight, VectorView value) {
    Lead& lead = leads_[static_cast<size_t>(i)];
    if (lead.position < 0) return;
    if (!(weight <= lead.rest / 2)) {
      lead.position = -1;  // it cancels: to be computed anew
      return;
    }
    const double s = weight / (lead.rest - weight);
    for (size_t c = 0; c < value.size(); ++c) {
      lead.output_without[c] += s * (lead.output_without[c] - value[c]);
    }
  }

  void remove_lead(int64_t i) {
    const std::span<double> change = changes_.row(i), change_products = change_products_.row(i);
    const std::vector<double>& output = leads_[static_cast<size_t>(i)].output_without;
    for (size_t c = 0; c < change.size(); ++c) change[c] = output[c] - outputs_.row(i)[c];
    for (size_t j = 0; j < count(); ++j)
      change_products[j] = inner_product(change, values_.row(positions_[j]));
    leads_[static_cast<size_t>(i)].position = -1;
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
  Matrix change_products_;          // D . v_j [rows, candidates]
  Matrix outputs_;                  // o, of the full cache [rows, head_dim]
  Matrix changes_;                  // D [rows, head_dim]
  Matrix others_sums_;              // [rows, head_dim]: sum of A_j v_j over those who are no candidates
  std::vector<double> others_;      // [rows]: their mass
  std::vector<double> left_;        // [rows]: the mass of all who are there, when errors were last looked at
  std::vector<Lead> leads_;         // [rows]
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
