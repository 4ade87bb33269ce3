#include "greedy.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "window_logits.hpp"

namespace kvbound::reference {
namespace {

using Positions = std::vector<int64_t>;

// The logits of the window's queries of one KV head's query heads, [rows, n]; minus infinity in a query's future.
Matrix window_logits(const LayerView& layer, int64_t kv_head, int64_t window) {
  Matrix all;
  WindowLogits logits(layer, window);
  for (const HeadBlock& heads : head_blocks(layer.shape, kv_head)) {
    logits.visit(heads, [&](const WindowLogitsBlock& block) {
      for (int64_t row = 0; row < block.logits.rows; ++row) {
        const std::span<double> own = block.logits.row(row);
        std::fill(own.begin() + block.visible[row], own.end(), -std::numeric_limits<double>::infinity());
        all.append_row(own);
      }
    });
  }
  return all;
}

// Everything depends on differences of values alone: without what they have in common nothing is lost in it.
Matrix centred(MatrixView values) {
  std::vector<double> mean(values.cols);
  for (int64_t j = 0; j < values.rows; ++j) {
    const VectorView value = values.row(j);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += value[c] / static_cast<double>(values.rows);
  }
  Matrix result(values.rows, values.cols);
  for (int64_t j = 0; j < values.rows; ++j) {
    for (int64_t c = 0; c < values.cols; ++c) result(j, c) = values(j, c) - mean[c];
  }
  return result;
}

// What one query's output is made of by some of the entries, the members:
//
//     change = sum_members B_j (v_j - o),   mass = sum_members B_j,   their output - o = change / mass
//
// B is the softmax of those who were members when the sums were formed.
struct Members {
  double log_sum_exp = 0;
  double mass = 1;
  std::vector<double> change;  // [head_dim]

  double squared_error() const { return inner_product(change, change) / (mass * mass); }
};

// One query, whose output shall change little.
struct Query {
  VectorView logits;  // [n]
  VectorView output;  // o [head_dim], of all entries
  MatrixView values;  // [n, head_dim]

  double weight(const Members& members, int64_t position) const {
    return std::exp(logits[position] - members.log_sum_exp);
  }
  // sign: 1 puts an entry in, -1 takes it out.
  void count(Members& members, int64_t position, double sign) const {
    const double weight = sign * this->weight(members, position);
    const VectorView value = values.row(position);
    for (size_t c = 0; c < value.size(); ++c) members.change[c] += weight * (value[c] - output[c]);
    members.mass += weight;
  }
  Members gather(const Positions& positions) const {
    std::vector<double> own;
    for (const int64_t j : positions) own.push_back(logits[j]);
    Members members{reference::log_sum_exp(own), 0, std::vector<double>(output.size())};
    for (const int64_t j : positions) count(members, j, 1);
    return members;
  }
};

// A query's sums over all that are left; and over the others, if one entry holds more than half of it, because what is left
// without that one could not be told from these.
struct QuerySums {
  Members all;
  std::optional<int64_t> dominant;  // position
  Members others;                   // without it
};

// || change - B (v - o) ||^2 for one member, along = change . (v - o), distance = || v - o ||^2.
double squared_norm_without(double squared_change, double along, double weight, double distance) {
  const double norm = squared_change - weight * (2 * along - weight * distance);
  return norm < 0 ? 0 : norm;  // NaN stays
}

// The candidates that are still there, in any order, and what the queries, one a row, say of them. No sum is used after
// half of its mass is gone: it is formed again, so that nothing cancels.
class Remaining {
 public:
  Remaining(const LayerView& layer, int64_t kv_head, int64_t window, int64_t candidates)
      : centred_(centred(layer.values.slice(kv_head))),
        values_(centred_),
        candidates_(candidates),
        positions_(static_cast<size_t>(candidates)),
        logits_(window_logits(layer, kv_head, window)),
        outputs_(logits_.rows(), values_.cols) {
    std::iota(positions_.begin(), positions_.end(), 0);
    attend();
    output_products_ = attention_logits(outputs_, values_.middle_rows(0, candidates), 1);
    for (Matrix* matrix : {&weights_, &distances_, &change_products_}) {
      *matrix = Matrix(logits_.rows(), candidates);
    }
    for (int64_t i = 0; i < logits_.rows(); ++i) {
      queries_.push_back({logits_.row(i), outputs_.row(i), values_});
      sums_.push_back(
          {{log_sum_exp(logits_.row(i)), 1, std::vector<double>(outputs_.row(i).size())}, {}, {}});
      note_weights(i);  // of all entries, of which the change is 0
      for (int64_t j = 0; j < candidates; ++j)
        distances_(i, j) = squared_distance(outputs_.row(i), values_.row(j));
    }
    require_finite("squared distances of values from outputs", distances_.numbers());  // else all would tie
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
  QuerySums& sums(int64_t row) { return sums_[row]; }
  const Query& query(int64_t row) const { return queries_[row]; }

  void attend() {
    Matrix weights = logits_;
    for (int64_t i = 0; i < weights.rows(); ++i) {
      const std::span<double> row = weights.row(i);
      softmax(row, *std::ranges::max_element(row), row);
    }
    multiply(weights, values_, outputs_.view());
  }

  // All that is left, candidates or not, but for one entry.
  Positions left_without(std::optional<int64_t> position) const {
    Positions left;
    std::ranges::copy_if(positions_, std::back_inserter(left), [&](int64_t j) { return j != position; });
    for (int64_t j = candidates_; j < values_.rows; ++j) left.push_back(j);
    return left;
  }

  // The columns that depend on the sums over all.
  void note_weights(int64_t i) {
    for (size_t j = 0; j < count(); ++j) {
      weights_(i, j) = query(i).weight(sums(i).all, positions_[j]);
    }
  }
  void note_products(int64_t i) {
    for (size_t j = 0; j < count(); ++j) {
      change_products_(i, j) = inner_product(sums(i).all.change, values_.row(positions_[j]));
    }
  }

  // Per candidate: the sum over queries of || o' - o ||^2 if it leaves, too.
  std::vector<double> errors_without_each() {
    std::vector<double> errors(count()), row(count());
    for (int64_t i = 0; i < logits_.rows(); ++i) {
      errors_without_each(i, row);
      for (size_t j = 0; j < row.size(); ++j) errors[j] += row[j];
    }
    if (std::ranges::any_of(errors, [](double error) { return std::isnan(error); })) {
      throw NonFinite("a removal error is no number: values are too large");
    }
    return errors;
  }

  // Of one query.
  void errors_without_each(int64_t i, std::span<double> errors) {
    const QuerySums& own = find_dominant(i);
    const VectorView weights = there(weights_, i), distances = there(distances_, i),
                     change_products = there(change_products_, i);
    const double squared_change = inner_product(own.all.change, own.all.change);
    const double along_output = inner_product(own.all.change, outputs_.row(i));
    for (size_t j = 0; j < errors.size(); ++j) {
      const double rest = own.all.mass - weights[j];
      const double norm =
          squared_norm_without(squared_change, change_products[j] - along_output, weights[j], distances[j]);
      errors[j] = norm / (rest * rest);
    }
    if (own.dominant) errors[index_of(*own.dominant)] = own.others.squared_error();
  }

  size_t index_of(int64_t position) const {
    return static_cast<size_t>(std::ranges::find(positions_, position) - positions_.begin());
  }

  const QuerySums& find_dominant(int64_t i) {
    QuerySums& own = sums(i);
    const VectorView weights = there(weights_, i);
    const auto most = std::ranges::max_element(weights);
    std::optional<int64_t> dominant;
    if (*most > own.all.mass / 2) dominant = positions_[most - weights.begin()];
    if (dominant && dominant != own.dominant) own.others = query(i).gather(left_without(dominant));
    own.dominant = dominant;
    return own;
  }

  void remove(size_t leaving) {
    const int64_t position = positions_[leaving];
    std::vector<double> value_products;
    for (const int64_t other : positions_) {
      value_products.push_back(inner_product(values_.row(position), values_.row(other)));
    }
    for (int64_t i = 0; i < logits_.rows(); ++i) {
      const double weight = weights_(i, leaving);
      const std::span<double> products = change_products_.row(i);
      const VectorView output_products = there(output_products_, i);
      for (size_t j = 0; j < count(); ++j) products[j] -= weight * (value_products[j] - output_products[j]);
    }
    forget(leaving);
    for (int64_t i = 0; i < logits_.rows(); ++i) take_out(i, position);
  }

  // The last candidate takes its place.
  void forget(size_t leaving) {
    const auto last = static_cast<int64_t>(count()) - 1, place = static_cast<int64_t>(leaving);
    for (Matrix* matrix : {&weights_, &distances_, &output_products_, &change_products_}) {
      for (int64_t i = 0; i < matrix->rows(); ++i) (*matrix)(i, place) = (*matrix)(i, last);
    }
    positions_[leaving] = positions_.back();
    positions_.pop_back();
  }

  void take_out(int64_t i, int64_t position) {
    constexpr double kWornOut = 0.5;
    QuerySums& own = sums(i);
    query(i).count(own.all, position, -1);
    if (own.dominant == position) {
      own.dominant.reset();
    } else if (own.dominant) {
      query(i).count(own.others, position, -1);
      if (own.others.mass < kWornOut) own.others = query(i).gather(left_without(own.dominant));
    }
    if (own.all.mass >= kWornOut) return;
    own.all = query(i).gather(left_without(std::nullopt));
    note_weights(i);
    note_products(i);
  }

  Matrix centred_;     // the values, less their mean [n, head_dim]
  MatrixView values_;  // of it
  int64_t candidates_;
  Positions positions_;          // of the candidates that are there: the first columns of the matrices
  Matrix logits_;                // [rows, n]
  Matrix outputs_;               // o [rows, head_dim]
  Matrix weights_;               // B [rows, candidates], of the sums over all
  Matrix distances_;             // || v_j - o ||^2 [rows, candidates]
  Matrix output_products_;       // o . v_j [rows, candidates]
  Matrix change_products_;       // change . v_j [rows, candidates], of the sums over all
  std::vector<Query> queries_;   // [rows]
  std::vector<QuerySums> sums_;  // [rows]
};

}  // namespace

std::vector<int64_t> removal_order(const LayerView& layer, int64_t kv_head, int64_t window,
                                   int64_t candidates, int64_t count) {
  if (count < 0 || count > candidates || candidates > layer.prompt_tokens() - window) {
    throw ShapeMismatch("cannot remove " + std::to_string(count) + " of " + std::to_string(candidates) +
                        " candidates among " + std::to_string(layer.prompt_tokens()) + " tokens, the last " +
                        std::to_string(window) + " of which are none");
  }
  std::vector<int64_t> order;
  if (count == 0) return order;
  Remaining remaining(layer, kv_head, window, candidates);
  for (int64_t i = 0; i < count; ++i) order.push_back(remaining.remove_next());
  return order;
}

}  // namespace kvbound::reference
