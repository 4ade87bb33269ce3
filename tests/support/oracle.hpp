// An independent oracle: the definitions in 50 decimal digits, each value with the bound of its rounding
// errors.
//
// A Bounded is the exact value of a quantity together with how far from it an evaluation in double precision
// may end. Bounds are derived, never tuned: every operation obeys fl(x op y) = (x op y)(1 + d) + e with |d|
// <= u = 2^-53 and |e| <= eta = 2^-1074 (only where a result may underflow), so
//
//     |fl(sum of n terms) - sum| <= gamma_{n-1} sum |terms|      in any order, with fused operations or
//     without, gamma_k = k u / (1 - k u),
//
// and errors of the operands are carried along to first order and beyond (products of errors are not
// dropped). exp is taken to be right to 2 u and eta, of which reference/exponential.hpp promises less; log to 1
// ulp <= 2 u, as the C library promises.
#pragma once

#include <gtest/gtest.h>

#include <boost/multiprecision/cpp_bin_float.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::oracle {

/// 168 bits: every double converts exactly, exp(+-20000) neither overflows nor underflows.
using Real = boost::multiprecision::cpp_bin_float_50;
using Indices = std::span<const int64_t>;

/// gamma_k = k u / (1 - k u) for double precision.
Real gamma(int64_t k);

/// The oracle's own precision, relative to the sum of the absolute terms that it adds up.
Real oracle_precision();

struct Bounded {
  Real value = 0;
  Real bound = 0;  ///< of |double evaluation - value|

  Bounded() = default;
  Bounded(double exact) : value(exact) {}  // a number that both sides are given
  Bounded(Real value_, Real bound_) : value(std::move(value_)), bound(std::move(bound_)) {}
};
using Row = std::vector<Bounded>;
using Rows = std::vector<Row>;

/// Numbers that both sides are given: bound 0.
Row exactly(VectorView numbers);
Rows exactly(MatrixView numbers);

Bounded operator+(const Bounded& a, const Bounded& b);
Bounded operator-(const Bounded& a, const Bounded& b);
Bounded operator-(const Bounded& a);
Bounded operator*(const Bounded& a, const Bounded& b);
Bounded operator/(const Bounded& a, const Bounded& b);  ///< b must be away from 0 by more than its bound
Bounded abs(const Bounded& a);
Bounded exp(const Bounded& a);
Bounded log(const Bounded& a);
Bounded sqrt(const Bounded& a);
Bounded sum(const Row& terms);                 ///< in any order
Bounded dot(const Row& a, const Row& b);       ///< in any order, fused or not
Row at(const Row& row, Indices indices);       ///< the chosen entries
Row outside(const Row& row, Indices indices);  ///< the others

/// |actual - expected.value| <= expected.bound; NaN fails.
testing::AssertionResult within(double actual, const Bounded& expected);

/// Element by element. Refused, because they prove nothing: different sizes, no elements, a reference of
/// zeros only, bounds that are nowhere smaller than the value.
testing::AssertionResult all_within(VectorView actual, const Row& expected);
testing::AssertionResult all_within(MatrixView actual, const Rows& expected);

// ---- attention

/// scale * queries[i,:] . keys[j,:]
Rows logits(MatrixView queries, MatrixView keys, double scale);
/// ln sum exp(z)
Bounded log_sum_exp(const Row& logits);
/// exp(z_j) / sum exp(z)
Row softmax(const Row& logits);
/// softmax over positions 0..first_position + i, 0 for the future
Rows causal_softmax(const Rows& logits, int64_t first_position);

struct Attention {
  Rows output;
  Row log_sum_exp;
};
/// sum p exp(z) v / sum p exp(z); votes empty: all 1
Attention attention(MatrixView queries, MatrixView keys, MatrixView values, double scale,
                    VectorView votes = {});

// ---- scores of a layer

/// (1/window) sum_i A_ij over the last `window` queries: [query_heads][n]
Rows window_attention(const LayerView& layer, int64_t window);
Rows max_pool(const Rows& scores, int64_t width);
Rows group_mean(const Rows& scores, int64_t group_size);
/// || values[i,:] W ||
Row projected_value_norms(MatrixView values, MatrixView output_projection, Norm norm);
/// Algorithm 1 of CriticalKV for one KV head; rows are the query heads of its group
Row stage_two_scores(const Rows& head_scores, const Rows& norms, double epsilon, GqaProduct gqa);

// ---- what eviction does to one query's output. Those without a suffix are the stable forms, and there only
// for their error bounds: their values must equal those of the definitions, which are the `_as_printed` ones.

/// A' = A / sum of the kept A
Row kept_attention_weights(const Row& attention_weights, Indices kept);
/// w_i = A_i if evicted, -e A'_i if kept, from the logits
Row eviction_weights(const Row& logits, Indices kept);
/// the same from weights of any sum
Row eviction_weights_of_mean(const Row& attention_weights, Indices kept);

/// || sum_i w_i V_i ||_1
Bounded output_perturbation(const Row& eviction_weights, MatrixView values, MatrixView output_projection);
/// || sum_i A_i V_i - sum_i A'_i V_i ||_1
Bounded output_perturbation_as_printed(const Row& attention_weights, MatrixView values,
                                       MatrixView output_projection, Indices kept);
/// sum_i |w_i| N_i
Bounded perturbation_bound(const Row& eviction_weights, const Row& norms);
/// C - (2 - 1/Sigma) S
Bounded perturbation_bound_as_printed(const Row& attention_weights, const Row& norms, Indices kept);
/// sum_{evicted} A N + ((1 - sigma) / sigma) sum_{kept} A N
Bounded stage_two_bound(const Row& attention_weights, const Row& norms, Indices stage_one, Indices kept);
/// C' - (2 - 1/sigma) S''
Bounded stage_two_bound_as_printed(const Row& attention_weights, const Row& norms, Indices stage_one,
                                   Indices kept);
/// sum_{evicted} A N + sum_{two} A (N - M) + ((1 - sigma) / sigma) (sum_{one} A N + M sum_{two} A)
Bounded attention_only_bound(const Row& attention_weights, const Row& norms, Indices stage_one, Indices kept);
/// C' - M (2 - 1/sigma) sum_{stage two} A
Bounded attention_only_bound_as_printed(const Row& attention_weights, const Row& norms, Indices stage_one,
                                        Indices kept);

}  // namespace kvbound::oracle
