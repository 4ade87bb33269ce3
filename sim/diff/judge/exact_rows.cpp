#include "exact_rows.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/sim/diff/claims/input_rounding.hpp>

namespace kvbound::sim {
namespace {

const RealClaim* pointer(const std::optional<RealClaim>& claim) { return claim ? &*claim : nullptr; }

// Whether every number of one type is a number of the other.
bool holds(Dtype recorded, Dtype stored) {
  const RealFormat wide = *real_format(recorded), narrow = *real_format(stored);
  return wide.fraction_bits >= narrow.fraction_bits && wide.least_exponent <= narrow.least_exponent &&
         wide.largest_exponent >= narrow.largest_exponent;
}

// The row of a claimed tensor [rows, head_dim], if it is exact.
std::optional<VectorView> exact_row(const RealClaim* claim, int64_t row, Dtype stored) {
  const std::optional<VectorView> numbers = claimed_row(claim, row);
  return numbers && are_exact(*numbers, claim->storage, stored) ? numbers : std::nullopt;
}

}  // namespace

MergedClaims prompt_claims(const LayerClaims& claims) {
  return {pointer(claims.votes), pointer(claims.merged_key), pointer(claims.merged_value)};
}

MergedClaims rebuilt_claims(const LayerClaims& claims) {
  return {pointer(claims.rebuilt_votes), pointer(claims.rebuilt_merged_key),
          pointer(claims.rebuilt_merged_value)};
}

MergedClaims step_claims(const LayerClaims& claims) {
  return {pointer(claims.step_votes), pointer(claims.step_merged_key), pointer(claims.step_merged_value)};
}

bool are_exact(VectorView numbers, Dtype recorded, Dtype stored) {
  return holds(recorded, stored) && std::ranges::all_of(numbers, [&](double number) {
           return std::isfinite(number) && rounded_to(number, stored) == number;
         });
}

bool are_exact_votes(double votes, Dtype recorded) {
  const double integers = std::ldexp(1, real_format(recorded)->fraction_bits + 1);
  return votes >= 1 && votes < integers && votes == std::floor(votes);
}

std::optional<VectorView> claimed_row(const RealClaim* claim, int64_t row) {
  if (!claim) return std::nullopt;
  const int64_t columns = claim->shape.back();
  return VectorView(claim->numbers).subspan(row * columns, columns);
}

ExactEntry ExactRows::entry(int64_t row) const {
  ExactEntry entry{std::nullopt, exact_row(claims_.keys, row, stored_),
                   exact_row(claims_.values, row, stored_)};
  if (!claims_.votes) return entry;
  const double votes = claims_.votes->numbers[row];
  if (are_exact_votes(votes, claims_.votes->storage)) entry.votes = votes;
  return entry;
}

}  // namespace kvbound::sim
