#include "row_functionals.hpp"

#include <cmath>

#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::sim {
namespace {

// A factor is 1 but for the bound; a difference is a share of the row's length.
FunctionalValue value_of(const MovedRow& moved, bool is_factor) {
  if (!(moved.size > 0)) return {is_factor ? 1.0 : 0.0, kInfinity};  // of zeros nothing is said
  if (is_factor) return {1 + moved.by / moved.size, moved.bound / moved.size};
  const double length = std::sqrt(moved.by);
  return length > 0
             ? FunctionalValue{length / std::sqrt(moved.size), moved.bound / (length * std::sqrt(moved.size))}
             : FunctionalValue{0, 0};
}

}  // namespace

bool MovedRow::is_outside() const { return bound < kInfinity && std::abs(by) > bound; }

double adding_error(double claimed, double expected, int64_t count) {
  return static_cast<double>(count + 2) * 0x1p-53 * (std::abs(claimed) + std::abs(expected));
}

FunctionalAgreement agreement_of(const std::string& name, bool is_factor,
                                 const std::vector<RowFunctional>& rows) {
  FunctionalAgreement result{name, is_factor};
  MovedRow all;
  double largest = -1;
  for (const RowFunctional& row : rows) {
    const MovedRow& moved = row.moved;
    ++result.rows;
    if (!(moved.bound < kInfinity)) continue;  // there is no bound
    if (moved.is_outside()) result.outside_at.push_back(row.first);
    if (row.is_judged) result.judged_at.push_back(row.first);
    all.by += moved.by;
    all.bound += moved.bound;
    all.size += moved.size;
    const double share = moved.bound > 0 ? std::abs(moved.by) / moved.bound : moved.by != 0 ? kInfinity : 0;
    if (!(share > largest)) continue;
    largest = result.worst_share = share;
    result.worst_at = row.index;
    result.worst = value_of(moved, is_factor);
  }
  result.outside = std::ssize(result.outside_at);
  result.judged = std::ssize(result.judged_at);
  result.all = value_of(all, is_factor);
  return result;
}

}  // namespace kvbound::sim
