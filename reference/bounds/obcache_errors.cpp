#include "obcache_errors.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/gram_factor.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

// The error, or the finite number kUnbounded if there is no bound (also for NaN).
double bounded(double error) { return error < kUnbounded ? error : kUnbounded; }

// The attention of one query and its errors, in one query head's space; obcache_errors.md, "Outputs".
class UncertainOutput {
 public:
  // exponents  in: errors of the logits; out: T
  UncertainOutput(VectorView logits, std::span<double> exponents, MatrixView values, const ChangeSpace& space,
                  const Arithmetic& arithmetic)
      : softmax_(softmax_errors(logits, exponents, arithmetic)), space_(space) {
    const auto tokens = std::ssize(logits);
    divisor_ = sum_error(tokens, arithmetic) + gamma(rescalings(arithmetic, tokens), arithmetic);
    terms_ = weighted_value_error(tokens, arithmetic);
    const double shared = log_sum_exp_error(softmax_, tokens, arithmetic);
    for (size_t j = 0; j < logits.size(); ++j) {
      weights.push_back(weight_of(logits[j], softmax_));
      weight_errors.push_back(
          std::min(1.0, score_weight_error(weights[j], growth(exponents[j] + shared), tokens, arithmetic)));
    }
    measure(exponents, values, arithmetic);
  }

  double log_sum_exp() const { return softmax_.log_sum_exp; }
  // size(o^ - o)
  double error() const { return std::min(error(1, 0, output_size_), range_) + lost_; }
  // size(o^_(-j) - o_(-j)) if the softmax of the others is formed anew, bounded from the
  // sums for o; rest = 1 - A_j.
  double error_without(double weight, double rest, double value_size) const {
    const double shifted = softmax_.growth * weight / (rest * rest) * (value_size + output_size_);
    return std::min(error(rest, shifted, (output_size_ + weight * value_size) / rest), range_) + lost_ / rest;
  }
  // The size of the sum of absolute terms of o in the tested implementation;
  // an implementation that projects the values first adds up larger terms.
  double terms_size() const { return space_.is_projected() ? absolute_size_ : output_size_; }

  std::vector<double> weights, weight_errors;  // [tokens]: A, and its errors
  std::vector<double> output;                  // o [head_dim]

 private:
  void measure(VectorView exponents, MatrixView values, const Arithmetic& arithmetic) {
    const int64_t columns = values.cols;
    output.resize(columns);
    std::vector<double> spread(columns), size(columns), lost(columns);
    std::vector<double> least(columns, kInfinity), most(columns, -kInfinity);
    for (size_t j = 0; j < weights.size(); ++j) {
      const VectorView value = values.row(j);
      for (int64_t c = 0; c < columns; ++c) output[c] += weights[j] * value[c];
    }
    const double lost_weight = weight_error(0, 0, arithmetic);
    const double widest = growth(divisor_ + terms_), floor = arithmetic.weights_floor * (1 + widest);
    std::vector<double> sizes(columns);
    for (size_t j = 0; j < weights.size(); ++j) {
      const VectorView value = values.row(j);
      const double off = weights[j] > 0 ? weights[j] * growth(exponents[j]) : 0;
      for (int64_t c = 0; c < columns; ++c) {
        spread[c] += off * std::abs(value[c] - output[c]);
        size[c] += (weights[j] + off) * std::abs(value[c]);
        lost[c] += lost_weight * std::abs(value[c]);
        sizes[c] += std::abs(value[c]);
        least[c] = std::min(least[c], value[c]);
        most[c] = std::max(most[c], value[c]);
      }
    }
    for (int64_t c = 0; c < columns; ++c) {
      const double largest = std::max(std::abs(most[c]), std::abs(least[c]));
      lost[c] += 2 * static_cast<double>(weights.size()) * arithmetic.smallest + 2 * arithmetic.input_floor +
                 (1 + widest) * arithmetic.partials_floor +
                 lost_output(floor, std::ssize(weights), sizes[c], largest);
      most[c] = most[c] - least[c] + widest * largest;
    }
    output_size_ = space_.size(output);
    spread_ = space_.size(spread);
    absolute_size_ = space_.size(size);
    lost_ = space_.size(lost);
    range_ = space_.size(most);
  }

  // The error of the output over a part of the entries that holds the mass `rest`.
  double error(double rest, double shifted, double size) const {
    const double total = softmax_.growth / rest;
    if (!(total < 0.5)) return kInfinity;
    const double moved = (spread_ / rest + shifted) / (1 - total);
    const double divisor = divisor_ + (1 + divisor_) * 2 * total / (1 - total);
    const double rounded = growth(terms_) * absolute_size_ / rest / (1 - total);
    return moved + divisor * (size + moved) + (1 + divisor) * rounded;
  }

  SoftmaxErrors softmax_;
  const ChangeSpace& space_;
  double divisor_ = 0, terms_ = 0;
  double output_size_ = 0, spread_ = 0, absolute_size_ = 0, lost_ = 0, range_ = 0;
};

// A score in the form factor^2 length(x)^2, with the errors of its parts.
struct Form {
  double factor = 0, factor_error = 0;
  double length = 0;  // of x
  double moved = 0;   // size(x^ - x)
  double size = 0;    // sum of absolute terms of x
};

// The errors of one query's scores of all entries. obcache_errors.md, "Scores".
class ScoreErrors {
 public:
  ScoreErrors(Change change, MatrixView values, VectorView sizes, VectorView squared_norms,
              const ChangeSpace& space, const Arithmetic& arithmetic)
      : change_(change),
        values_(values),
        sizes_(sizes),
        squared_norms_(squared_norms),
        space_(space),
        arithmetic_(arithmetic) {
    const int64_t terms = space.is_projected() ? 2 * values.cols + space.model_dim() : values.cols;
    const double projection = space.is_projected() ? arithmetic.input * (2 + arithmetic.input) : 0;
    const double products =
        gamma(rounding::length_depth(arithmetic, terms) + 20, arithmetic) + reference_error(terms);
    own_rounding_ = (static_cast<double>(terms) + 20) * 0x1p-53;
    floor_ = space.size(std::vector<double>(values.cols, 1.0));
    evaluation_ = products + (1 + products) * (projection + length_error());
  }

  // visit(entry, score, error)
  //
  // votes  empty: 1 for all
  template <class Visit>
  void visit(VectorView logits, VectorView logit_errors, VectorView votes, const Visit& visit) const {
    const VotedLogits voted = with_votes(logits, logit_errors, votes);
    std::vector<double> exponents = voted.errors;
    const UncertainOutput output(voted.logits, exponents, values_.middle_rows(0, std::ssize(logits)), space_,
                                 arithmetic_);
    std::vector<double> gram_product(output.output.size());
    std::ranges::copy(space_.lengths().gram_product({output.output.data(), 1, values_.cols}).row(0),
                      gram_product.begin());
    Query query{logits,         logit_errors,
                voted,          output,
                gram_product,   inner_product(gram_product, output.output),
                output.error(), 0};
    query.all_weight_errors = std::accumulate(output.weight_errors.begin(), output.weight_errors.end(), 0.0);
    for (size_t j = 0; j < logits.size(); ++j) {
      const Judged judged = judge(query, j);
      visit(j, judged.score, std::isinf(judged.score) ? 0 : bounded(judged.error));
    }
  }

 private:
  // The softmax's logits z + ln p, whose weights include votes, and their errors.
  struct VotedLogits {
    std::vector<double> logits, errors;
  };
  VotedLogits with_votes(VectorView logits, VectorView errors, VectorView votes) const {
    VotedLogits voted{{logits.begin(), logits.end()}, {errors.begin(), errors.end()}};
    for (size_t j = 0; j < votes.size(); ++j) {
      const double log_votes = std::log(votes[j]);
      voted.errors[j] += exponential(arithmetic_) * std::abs(log_votes) +
                         2 * unit(arithmetic_) * (std::abs(logits[j]) + std::abs(log_votes));
      voted.logits[j] += log_votes;
    }
    return voted;
  }

  // What tensor cores add to the error of a squared length, and the factor of a Gram matrix, relative to the
  // square of its terms.
  double length_error() const {
    double widest = 0;  // the largest of sum_c |v_c| |1| / |v|
    for (int64_t j = 0; arithmetic_.lengths_floor > 0 && j < values_.rows; ++j) {
      if (sizes_[j] > 0) widest = std::max(widest, absolute_sum(values_.row(j)) * floor_ / sizes_[j]);
    }
    const double products = (arithmetic_.tensor_lengths + arithmetic_.lengths_floor * widest) / 2;
    if (!space_.is_projected() || !arithmetic_.gram_factor) return products;
    double lengths = 0;  // the largest of (2 |v W| e + e^2) / |v|^2 of values
    const double share = arithmetic_.tensor_lengths +
                         gamma(rounding::length_depth(arithmetic_, values_.cols) + 1, arithmetic_);
    const double factor = gram_factor_error(values_.cols, space_.model_dim());
    for (int64_t j = 0; j < values_.rows; ++j) {
      const double whole = space_.sum_of_lengths(values_.row(j)), moved = share * whole;
      const double square = (2 * std::sqrt(squared_norms_[j]) + moved) * moved + factor * whole * whole;
      if (sizes_[j] > 0) lengths = std::max(lengths, square / (sizes_[j] * sizes_[j]));
    }
    return products + lengths;
  }

  struct Query {
    VectorView logits, logit_errors;  // z, which is a factor of scores, has no votes
    const VotedLogits& voted;
    const UncertainOutput& output;
    VectorView gram_product;  // o G, whose plain inner products are those of the head's space
    double output_norm = 0;
    double output_error = 0;
    double all_weight_errors = 0;
  };
  struct Judged {
    double score = 0;
    double error = 0;
  };

  Judged judge(const Query& query, size_t j) const {
    const double weight = query.output.weights[j], off = query.output.weight_errors[j];
    const double logit = std::abs(query.logits[j]), logit_error = query.logit_errors[j];
    const double size = sizes_[j], stored = stored_error(query, j);
    const double both = size + query.output.terms_size();
    switch (change_) {
      case Change::value:
        return judged({weight, off, std::sqrt(squared_norms_[j]), stored, size});
      case Change::key:
        return judged({weight * logit, off * (logit + logit_error) + weight * logit_error,
                       length(query, j, 1, 1), query.output_error + stored, both});
      case Change::joint: {
        const double moved = logit_error * length(query, j, 1, 1) +
                             (logit + logit_error) * query.output_error + (1 + logit + logit_error) * stored;
        return judged({weight, off, length(query, j, 1 + query.logits[j], query.logits[j]), moved,
                       size + (logit + logit_error) * both});
      }
      case Change::exact:
        return weight <= 0.5 ? light(query, j, stored) : heavy(query, j, stored);
      case Change::slot:
        break;
    }
    throw InvalidPolicy("no policy scores by this change: there is no bound on its rounding");
  }

  // The score `exact` of an entry with A_j <= 1/2, for which o_(-j) is near o.
  Judged light(const Query& query, size_t j, double stored) const {
    const double weight = query.output.weights[j], off = query.output.weight_errors[j], rest = 1 - weight;
    const double terms = query.output.terms_size(), others_terms = (terms + weight * sizes_[j]) / rest;
    const double distance = length(query, j, 1, 1) / rest;
    const Judged result = from_output(
        query, j,
        {rest, off + unit(arithmetic_), sum_of_others_error(query, j, rest), others_terms, distance}, stored);
    const double direct = query.output.error_without(weight, rest, sizes_[j]) + stored;
    const Judged anew = judged({weight, off, distance, direct, sizes_[j] + others_terms});
    return {result.score, std::max(result.error, anew.error)};
  }

  // The score `exact` of the entry with A_j > 1/2: from the softmax
  // of the others and, where rounding leaves enough digits, from o.
  Judged heavy(const Query& query, size_t j, double stored) const {
    if (query.logits.size() == 1) return {kInfinity, 0};
    std::vector<double> logits = query.voted.logits, errors = query.voted.errors;
    const auto at = static_cast<std::ptrdiff_t>(j);
    logits.erase(logits.begin() + at);
    errors.erase(errors.begin() + at);
    Matrix values(0, values_.cols);
    for (size_t l = 0; l < query.logits.size(); ++l) {
      if (l != j) values.append_row(values_.row(l));
    }
    const UncertainOutput others(logits, errors, values, space_, arithmetic_);
    std::vector<double> difference(others.output.size());
    for (size_t c = 0; c < difference.size(); ++c) {
      difference[c] = values_(j, c) - others.output[c];
    }
    const double distance = std::sqrt(space_.lengths().squared_norm(difference));
    const double weight = query.output.weights[j], off = query.output.weight_errors[j];
    const double rest = std::exp(others.log_sum_exp() - query.output.log_sum_exp());
    Judged result = judged({weight, off, distance, others.error() + stored, sizes_[j] + others.terms_size()});
    // Forming 1 - A_j, or summing the others' weights, is covered only if its error is at
    // most half of the result.
    double by_difference = off + unit(arithmetic_), by_sum = sum_of_others_error(query, j, rest);
    if (by_difference > rest / 2) by_difference = 0;
    if (by_sum > rest / 2) by_sum = 0;
    if (by_difference == 0 && by_sum == 0) return result;
    const Judged either =
        from_output(query, j, {rest, by_difference, by_sum, others.terms_size(), distance}, stored);
    return {result.score, std::max(result.error, either.error)};
  }

  // The attention without an entry j: its mass 1 - A_j, and o_(-j).
  struct Rest {
    double mass = 0;
    // Errors of the mass as 1 - A_j and as a sum; 0: that form is not covered.
    double by_difference = 0, by_sum = 0;
    double terms = 0;     // of o_(-j)
    double distance = 0;  // || v_j - o_(-j) ||
  };

  // Errors of (A / (1 - A))^2 || v - o ||^2 and, if 1 - A is formed
  // as a difference, of A^2 || v - (o - A v) / (1 - A) ||^2.
  Judged from_output(const Query& query, size_t j, const Rest& rest, double stored) const {
    const double weight = query.output.weights[j], off = query.output.weight_errors[j], size = sizes_[j];
    const double rest_error = std::max(rest.by_difference, rest.by_sum), least = rest.mass - rest_error;
    Judged result{weight * weight * rest.distance * rest.distance, 0};
    if (!(least > 0)) return {result.score, kUnbounded};
    const bool may_cancel = weight > 0.5;
    const double whole = size + rest.terms, reach = size + query.output.terms_size();
    const Form quotient{weight / rest.mass, (off * rest.mass + weight * rest_error) / (rest.mass * least),
                        rest.mass * rest.distance, query.output_error + stored, reach};
    result.error = error_where_left(quotient, may_cancel ? rest.mass * whole : kInfinity);
    if (rest.by_difference == 0) return result;
    const double moved =
        (query.output_error + off * size + rest.by_difference * rest.terms + 4 * unit(arithmetic_) * reach) /
            (rest.mass - rest.by_difference) +
        stored;
    const Form undone{weight, off, rest.distance, moved, whole};
    return {result.score, std::max(result.error, error_where_left(undone, may_cancel ? whole : kInfinity))};
  }

  // The error of a form whose x cancels to a vector with terms of size at most `left`. The form is evaluated
  // by inner products if rounding leaves at least half of `left`, else element by element; 0 if that does not
  // leave half either, because then the form is not covered.
  double error_where_left(Form form, double left) const {
    const bool by_products = evaluation_ * form.size * form.size <= left * left / 2;
    if (!by_products) {
      form.moved += evaluation_ * form.size;
      form.size = form.length;
    }
    return form.moved <= left / 2 ? judged(form).error : 0;
  }

  double sum_of_others_error(const Query& query, size_t j, double rest) const {
    return std::max(0.0, query.all_weight_errors - query.output.weight_errors[j]) +
           gamma(static_cast<double>(query.logits.size()), arithmetic_) * rest;
  }

  // An upper bound of || a v - b o ||.
  double length(const Query& query, size_t j, double a, double b) const {
    const VectorView value = values_.row(j);
    const double squared = a * a * squared_norms_[j] - 2 * a * b * inner_product(value, query.gram_product) +
                           b * b * query.output_norm;
    const double size = std::abs(a) * sizes_[j] + std::abs(b) * query.output.terms_size();
    return std::sqrt(std::max(0.0, squared) + own_rounding_ * size * size);
  }

  // The error from storing a value and W^O in another type; the absolute part is doubled to
  // cover products of errors.
  double stored_error(const Query& query, size_t j) const {
    const double relative = arithmetic_.input * sizes_[j];
    if (arithmetic_.input_floor == 0) return relative;
    const double columns = std::sqrt(static_cast<double>(space_.model_dim()));
    const double numbers = absolute_sum(values_.row(j)) + absolute_sum(query.output.output);
    return relative + 2 * arithmetic_.input_floor * (floor_ + columns * numbers);
  }

  Judged judged(const Form& form) const {
    const double score = form.factor * form.factor * form.length * form.length;
    const double factor = form.factor + form.factor_error, reach = form.size + form.moved;
    const double moved = form.moved * (2 * form.length + form.moved) + evaluation_ * reach * reach;
    const double lost = 4 * arithmetic_.smallest * static_cast<double>(values_.cols + 1) *
                        static_cast<double>(space_.model_dim() + 1) * (1 + reach) * (1 + reach) *
                        (1 + factor) * (1 + factor);
    const double factors = form.factor_error * (2 * form.factor + form.factor_error);
    return {score, bounded(factors * form.length * form.length + factor * factor * moved + lost)};
  }

  Change change_;
  MatrixView values_;
  VectorView sizes_, squared_norms_;
  const ChangeSpace& space_;
  const Arithmetic& arithmetic_;
  double evaluation_ = 0;    // error of a squared length, relative to the square of its terms
  double own_rounding_ = 0;  // rounding of the lengths computed here
  double floor_ = 0;         // size of a vector of ones
};

}  // namespace

Matrix change_score_errors(Change change, MatrixView queries, MatrixView keys, MatrixView values,
                           const MeasuredValues& measured, std::span<const ChangeSpace> spaces, double scale,
                           const Arithmetic& arithmetic, VectorView votes) {
  require_equal("rows of keys", keys.rows, "rows of values", values.rows);
  if (!votes.empty()) require_equal("votes", std::ssize(votes), "rows of keys", keys.rows);
  require_equal("columns of sizes", measured.sizes.cols(), "rows of values", values.rows);
  const Matrix logits = attention_logits(queries, keys, scale);
  const Matrix logit_off = logit_errors(queries, keys, scale, arithmetic);
  Matrix errors(queries.rows, keys.rows);
  for (int64_t h = 0; h < queries.rows; ++h) {
    const ScoreErrors scores(change, values, measured.sizes.row(h), measured.squared_norms.row(h), spaces[h],
                             arithmetic);
    scores.visit(logits.row(h), logit_off.row(h), votes,
                 [&](size_t j, double, double error) { errors.row(h)[j] = error; });
  }
  return errors;
}

Matrix window_score_errors(const LayerView& layer, int64_t window, Change change, Space space,
                           const Arithmetic& arithmetic) {
  if (window < 1 || window > layer.window_queries()) {
    throw ShapeMismatch("window is " + std::to_string(window) + " but the layer has " +
                        std::to_string(layer.window_queries()) + " prompt queries");
  }
  Matrix errors(layer.shape.query_heads, layer.prompt_tokens());
  const std::vector<ChangeSpace> spaces =
      change_spaces(space, layer.output_projection, layer.shape.query_heads);
  const double adding = gamma(static_cast<double>(window) + 2, arithmetic);
  parallel_for(layer.shape.query_heads, [&](int64_t h) {
    const int64_t g = layer.shape.kv_head_of(h);
    const MatrixView keys = layer.keys.slice(g), values = layer.values.slice(g);
    const MatrixView queries = layer.queries.slice(h).middle_rows(layer.window_queries() - window, window);
    const Matrix logits = attention_logits(queries, keys, layer.scale);
    const Matrix logit_off = logit_errors(queries, keys, layer.scale, arithmetic);
    const auto own = std::span(spaces).subspan(h, 1);
    const MeasuredValues measured(values, own);
    const ScoreErrors scores(change, values, measured.sizes.row(0), measured.squared_norms.row(0), own[0],
                             arithmetic);
    std::vector<bool> infinite(values.rows);
    for (int64_t i = 0; i < window; ++i) {
      const int64_t visible = layer.prompt_tokens() - window + i + 1;
      scores.visit(logits.row(i).first(visible), logit_off.row(i).first(visible), {},
                   [&](size_t j, double score, double error) {
                     if (std::isinf(score)) infinite[j] = true;
                     errors.row(h)[j] += infinite[j] ? 0 : error + adding * (score + error);
                   });
    }
    for (size_t j = 0; j < infinite.size(); ++j) {
      if (infinite[j]) errors.row(h)[j] = 0;
    }
  });
  return errors;
}

Matrix accumulated_attention_errors(const LayerView& layer, int64_t window, const Arithmetic& arithmetic) {
  Matrix errors = window_attention_errors(layer, window, arithmetic);
  for (int64_t h = 0; h < errors.rows(); ++h) {
    for (double& error : errors.row(h)) error *= static_cast<double>(window);
  }
  return errors;
}

Matrix group_sum_errors(MatrixView scores, MatrixView errors, int64_t group_size,
                        const Arithmetic& arithmetic) {
  Matrix sum = group_sum(errors, group_size);
  const Matrix size = group_sum(scores, group_size);
  const double adding = gamma(static_cast<double>(group_size), arithmetic);
  for (int64_t g = 0; g < sum.rows(); ++g) {
    for (int64_t j = 0; j < sum.cols(); ++j) {
      sum(g, j) = std::isinf(size(g, j)) ? 0 : sum(g, j) + adding * (size(g, j) + sum(g, j));
    }
  }
  return sum;
}

double running_sum_error(double sum, double error, double contribution_error, const Arithmetic& arithmetic) {
  if (std::isinf(sum)) return 0;
  const double before = error + contribution_error;
  return before + unit(arithmetic) * (std::abs(sum) + before);
}

}  // namespace kvbound::reference
