#include "functionals.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::sim {

OutputFunctionalsJudge::OutputFunctionalsJudge(const RealClaim& claim)
    : claim_(claim),
      head_dim_(claim.shape.back()),
      rows_(head_dim_ == 0 ? 0 : claim.numbers.size() / static_cast<size_t>(head_dim_)),
      gain_by_chance_(rows_.size()),
      scale_by_chance_(rows_.size()) {}

void OutputFunctionalsJudge::add(int64_t row, const reference::OutputFunctionals& expected) {
  const VectorView claimed = VectorView(claim_.numbers).subspan(row * head_dim_, head_dim_);
  if (!std::ranges::all_of(claimed, [](double number) { return std::isfinite(number); })) {
    rows_[row].differs = true;
    return;
  }
  const std::vector<double>& output = expected.output();
  std::vector<double> difference;
  for (int64_t c = 0; c < head_dim_; ++c) difference.push_back(claimed[c] - output[c]);
  const double summing = static_cast<double>(head_dim_ + 2) * 0x1p-53;  // of this sum's roundings
  const auto moved = [&](VectorView direction) {
    Moved result{0, expected.error(direction), 0};
    for (int64_t c = 0; c < head_dim_; ++c) {
      result.by += direction[c] * difference[c];
      result.size += direction[c] * direction[c];
      // The rounding of the stored number, and of the sum.
      result.bound += std::abs(direction[c]) * (half_spacing(claim_.storage, claimed[c]) +
                                                summing * (std::abs(claimed[c]) + std::abs(output[c])));
    }
    return result;
  };
  const std::vector<double> scale = expected.scale_direction();
  rows_[row] = {true, false, moved(output), moved(scale), moved(difference)};
  gain_by_chance_[row] = chance_row(expected, output, claimed, claim_.storage);
  scale_by_chance_[row] = chance_row(expected, scale, claimed, claim_.storage);
  rows_[row].difference.size = rows_[row].gain.size;
  const auto is_outside = [](const Moved& of) { return of.bound < kInfinity && std::abs(of.by) > of.bound; };
  rows_[row].differs =
      is_outside(rows_[row].gain) || is_outside(rows_[row].scale) || is_outside(rows_[row].difference);
  for (int64_t c = 0; c < head_dim_; ++c) {
    const double bound = expected.element_errors()[c] + half_spacing(claim_.storage, claimed[c]);
    rows_[row].differs = rows_[row].differs || std::abs(difference[c]) > bound;
  }
}

std::vector<FunctionalAgreement> OutputFunctionalsJudge::agreements() const {
  if (std::ranges::none_of(rows_, &Row::judged)) return {};
  return {agreement("gain", &Row::gain), agreement("logit scale", &Row::scale),
          agreement("difference", &Row::difference)};
}

ChanceTests OutputFunctionalsJudge::chances() const {
  ChanceTests tests;
  const int64_t heads = claim_.shape.size() < 2 ? 1 : claim_.shape[claim_.shape.size() - 2];
  add_tests("gain", gain_by_chance_, heads, tests);
  add_tests("logit scale", scale_by_chance_, heads, tests);
  return tests;
}

std::vector<int64_t> OutputFunctionalsJudge::index_of(size_t row) const {
  std::vector<int64_t> index(claim_.shape.size() - 1);
  for (size_t d = index.size(); d-- > 0;) {
    index[d] = static_cast<int64_t>(row) % claim_.shape[d];
    row /= static_cast<size_t>(claim_.shape[d]);
  }
  return index;
}

FunctionalAgreement OutputFunctionalsJudge::agreement(const char* name, Moved Row::*functional) const {
  const bool is_difference = functional == &Row::difference;
  FunctionalAgreement result{name, !is_difference};
  result.judged_rows.resize(rows_.size());
  Moved all;
  double largest = -1;
  // A factor is 1 but for the bound; a difference is a share of the output's length.
  const auto estimate = [&](const Moved& moved) -> FunctionalValue {
    if (!(moved.size > 0)) return {is_difference ? 0.0 : 1.0, kInfinity};  // of zeros nothing is said
    if (!is_difference) return {1 + moved.by / moved.size, moved.bound / moved.size};
    const double length = std::sqrt(moved.by);
    return length > 0 ? FunctionalValue{length / std::sqrt(moved.size),
                                        moved.bound / (length * std::sqrt(moved.size))}
                      : FunctionalValue{0, 0};
  };
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!rows_[row].judged) continue;
    const Moved& moved = rows_[row].*functional;
    ++result.rows;
    if (!(moved.bound < kInfinity)) continue;  // there is no bound
    const bool is_outside = std::abs(moved.by) > moved.bound;
    result.outside += is_outside;
    if (is_outside) result.outside_at.push_back(static_cast<int64_t>(row));
    result.judged_rows[row] = rows_[row].gain.bound < rows_[row].gain.size;
    result.judged += result.judged_rows[row];
    all.by += moved.by;
    all.bound += moved.bound;
    all.size += moved.size;
    const double share = moved.bound > 0 ? std::abs(moved.by) / moved.bound : moved.by != 0 ? kInfinity : 0;
    if (!(share > largest)) continue;
    largest = result.worst_share = share;
    result.worst_at = index_of(row);
    result.worst = estimate(moved);
  }
  result.all = estimate(all);
  return result;
}

}  // namespace kvbound::sim
