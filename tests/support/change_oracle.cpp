#include "change_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>

namespace kvbound::oracle {
namespace {

using reference::Change;

std::vector<std::vector<Measured>> measured(MatrixView rows) {
  std::vector<std::vector<Measured>> result;
  for (const Reals& row : exact::vectors(rows)) result.emplace_back(row.begin(), row.end());
  return result;
}

}  // namespace

Reals exact_logits(VectorView query, MatrixView keys, double scale) {
  const Reals scaled = exact::scaled(scale, Reals(query.begin(), query.end()));
  Reals logits;
  for (const Reals& key : exact::vectors(keys)) logits.push_back(dot(scaled, key));
  return logits;
}

std::vector<Measured> projected(const std::vector<Measured>& x, MatrixView projection) {
  if (projection.rows == 0) return x;
  std::vector<Measured> result(projection.cols);
  for (int64_t m = 0; m < projection.cols; ++m) {
    for (size_t c = 0; c < x.size(); ++c) result[m] += x[c] * Measured(projection(c, m));
  }
  return result;
}

Measured change(Change change, const Reals& logits, MatrixView values, MatrixView projection, int64_t entry,
                VectorView votes) {
  const bool voting = !votes.empty();
  exact::QueryOf<Measured> query(voting ? voted(Reals(votes.begin(), votes.end()), logits) : logits,
                                 measured(values));
  // Removal takes the votes away with the entry; the other changes are to z, which has none.
  if (change != Change::exact) query.logits = logits;
  return exact::squared(projected(change_vector(change, query, entry), projection));
}

std::vector<Measured> removal(const Reals& logits, MatrixView values, Indices removed) {
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < values.rows; ++i) {
    if (!std::ranges::binary_search(removed, i)) kept.push_back(i);
  }
  const Reals weights = eviction_weights_of_mean(softmax(logits), kept);
  std::vector<Measured> change(values.cols);
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t c = 0; c < values.cols; ++c) change[c] += Measured(-weights[i] * values(i, c));
  }
  return change;
}

testing::AssertionResult near(double actual, const Measured& expected) {
  const Real allowed = Real("1e-9") * abs(expected.value) + Real("1e-13") * expected.terms +
                       std::numeric_limits<double>::min();
  if (std::isfinite(actual) && abs(Real(actual) - expected.value) <= allowed) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << std::setprecision(17) << actual << " is not within " << allowed
                                     << " of " << std::setprecision(25) << expected.value;
}

}  // namespace kvbound::oracle
