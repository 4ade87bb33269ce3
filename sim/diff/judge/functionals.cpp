#include "functionals.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

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
  std::vector<double> difference, stored;
  for (int64_t c = 0; c < head_dim_; ++c) {
    difference.push_back(claimed[c] - output[c]);
    stored.push_back(half_spacing(claim_.storage, claimed[c]));
  }
  const auto moved = [&](VectorView direction) {
    MovedRow result{0, expected.error(direction), 0};
    for (int64_t c = 0; c < head_dim_; ++c) {
      result.by += direction[c] * difference[c];
      result.size += direction[c] * direction[c];
      result.bound += std::abs(direction[c]) * (stored[c] + adding_error(claimed[c], output[c], head_dim_));
    }
    return result;
  };
  const std::vector<double> scale = expected.scale_direction();
  rows_[row] = {true, false, moved(output), moved(scale), moved(difference)};
  gain_by_chance_[row] = chance_row(expected, output, claimed, claim_.storage);
  scale_by_chance_[row] = chance_row(expected, scale, claimed, claim_.storage);
  rows_[row].difference.size = rows_[row].gain.size;
  rows_[row].differs =
      rows_[row].gain.is_outside() || rows_[row].scale.is_outside() || rows_[row].difference.is_outside();
  for (int64_t c = 0; c < head_dim_; ++c) {
    const double bound = expected.element_errors()[c] + stored[c];
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

FunctionalAgreement OutputFunctionalsJudge::agreement(const char* name, MovedRow Row::*functional) const {
  std::vector<RowFunctional> judged;
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!rows_[row].judged) continue;
    const int64_t first = static_cast<int64_t>(row) * head_dim_;
    std::vector<int64_t> index = index_of(first, claim_.shape);
    index.pop_back();
    judged.push_back(
        {first, std::move(index), rows_[row].*functional, rows_[row].gain.bound < rows_[row].gain.size});
  }
  return agreement_of(name, functional != &Row::difference, judged);
}

}  // namespace kvbound::sim
