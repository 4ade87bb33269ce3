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

// The logits of the window's queries for one KV head's query
// heads, [rows, n]; -infinity for tokens in a query's future.
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

// The values minus their mean. Changes of outputs depend on differences of values only, and without a large
// common part these differences lose fewer bits.
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

// Sums over a subset of the entries, the members, for one query with output o over all entries:
//
//     change = sum_members B_j (v_j - o),   mass = sum_members B_j
//     output over the members - o = change / mass
//
// B is the softmax over the entries that were members when the sums were formed.
struct Members {
  double log_sum_exp = 0;
  double mass = 1;
  std::vector<double> change;  // [head_dim]

  double squared_error() const { return inner_product(change, change) / (mass * mass); }
};

// One query of the window.
struct Query {
  VectorView logits;  // [n]
  VectorView output;  // o [head_dim], over all entries
  MatrixView values;  // [n, head_dim]

  double weight(const Members& members, int64_t position) const {
    return std::exp(logits[position] - members.log_sum_exp);
  }
  // Adds an entry to the members (sign 1) or removes it from them (sign -1).
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

// A query's sums over all remaining entries. If one of them, the dominant one, holds more than half of the
// mass, also the sums over the others, because subtracting the dominant entry from the former would cancel.
struct QuerySums {
  Members all;
  std::optional<int64_t> dominant;  // position
  Members others;                   // all remaining entries but the dominant one
};

// || change - B (v - o) ||^2 for one member, along = change . (v - o), distance = || v - o ||^2.
double squared_norm_without(double squared_change, double along, double weight, double distance) {
  const double norm = squared_change - weight * (2 * along - weight * distance);
  return norm < 0 ? 0 : norm;  // NaN is returned
}

// The remaining candidates, in any order, and the queries' sums (one row per query). A sum that has lost more
// than half of its mass is formed anew before it is used, which bounds cancellation.
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
      note_weights(i);  // over all entries, for which `change` is 0
      for (int64_t j = 0; j < candidates; ++j)
        distances_(i, j) = squared_distance(outputs_.row(i), values_.row(j));
    }
    // With infinite distances all candidates would tie.
    require_finite("squared distances of values from outputs", distances_.numbers());
  }

  // Removes the candidate whose removal gives the smallest error; returns its position.
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

  // The positions of all remaining entries, candidates or not, except `position`.
  Positions left_without(std::optional<int64_t> position) const {
    Positions left;
    std::ranges::copy_if(positions_, std::back_inserter(left), [&](int64_t j) { return j != position; });
    for (int64_t j = candidates_; j < values_.rows; ++j) left.push_back(j);
    return left;
  }

  // The next two recompute the columns that depend on the sums over all remaining entries.
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

  // Per candidate: the sum over queries of || o' - o ||^2 if this candidate is removed next.
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

  // The same for one query.
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

  // Drops a candidate's column; the last candidate's takes its place.
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

  Matrix centred_;     // the values minus their mean [n, head_dim]
  MatrixView values_;  // view of centred_
  int64_t candidates_;
  Positions positions_;          // of the remaining candidates, which are the first columns of the matrices
  Matrix logits_;                // [rows, n]
  Matrix outputs_;               // o [rows, head_dim]
  Matrix weights_;               // B [rows, candidates], for the sums over all remaining entries
  Matrix distances_;             // || v_j - o ||^2 [rows, candidates]
  Matrix output_products_;       // o . v_j [rows, candidates]
  Matrix change_products_;       // change . v_j [rows, candidates], for the sums over all remaining entries
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
