// How much an entry's scores vary, over all queries and over the last ones.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// Means over the entries that more than `window` queries have seen; NaN if there are none.
struct MeanVariances {
  double whole = 0, window = 0, ratio = 0;
};

/// The variance of each entry's scores, query by query, in whole and in a sliding window. For an entry j that
/// the queries 1..m have seen, m > w = window, with scores s_1, ..., s_m:
///
///     whole    V_j = (1/m) sum_i (s_i - mean of s_1..s_m)^2
///     window   U_j = (1/w) sum_{i > m-w} (s_i - mean of the last w)^2
///     ratio    U_j / V_j, at most m/w
///
/// Entries that fewer queries have seen are left out, because both variances would be of the same scores.
/// If scores are independent of each other, U_j / V_j is (1 - 1/w) / (1 - 1/m) on average, to first order;
/// if successive ones are alike, it is smaller.
class ScoreVariance {
 public:
  /// window  >= 1, number of queries
  explicit ScoreVariance(int64_t window) : window_(window) {}

  /// Adds a query's scores of all entries that it sees: all entries of the query before, and possibly more.
  ///
  /// scores  [entries], in 0..1
  /// throws  ShapeMismatch if entries are missing; NonFinite
  void observe(std::vector<double> scores);

  /// After the last query. The ratio is over the entries whose V_j is at least 2^-1022, the smallest number
  /// of full precision; NaN if there are none.
  ///
  /// V_j is updated by Welford's rule, U_j computed in two passes: neither subtracts squares that cancel.
  MeanVariances means() const;

 private:
  int64_t window_;
  std::vector<int64_t> counts_;           // [entries]: number of queries that saw the entry
  std::vector<double> means_, squares_;   // [entries]: of all scores: mean, sum of (s - mean)^2
  std::deque<std::vector<double>> last_;  // scores of the last `window_` queries, the oldest first
};

}  // namespace kvbound::sim
