#include "whole_rows.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/options/number.hpp>

#include "row_functionals.hpp"

namespace kvbound::sim {
namespace {

// One row beside what is expected of it: those of its elements that are judged.
struct Row {
  std::vector<double> claimed, expected;
  std::vector<double> bounds;  // as far as the claimed numbers may be off, with the rounding of storage
  std::vector<double> adding;  // adding_error
  MovedRow gain, difference;
  bool differs = false;

  // x^ - factor x
  std::vector<double> apart(double factor) const {
    std::vector<double> all;
    for (size_t c = 0; c < claimed.size(); ++c) all.push_back(claimed[c] - factor * expected[c]);
    return all;
  }
  // <w, x^ - factor x>, with the bounds that elements have together.
  MovedRow moved(VectorView direction, VectorView apart) const {
    MovedRow result;
    for (size_t c = 0; c < claimed.size(); ++c) {
      result.by += direction[c] * apart[c];
      result.bound += std::abs(direction[c]) * (bounds[c] + adding[c]);
      result.size += expected[c] * expected[c];
    }
    return result;
  }
  bool are_inside(VectorView apart) const {
    return std::ranges::equal(apart, bounds, [](double off, double most) { return std::abs(off) <= most; });
  }
};

// nullopt if a number is not finite.
std::optional<Row> judged(const JudgedElements& elements, const WholeRow& whole) {
  Row row;
  for (int64_t i = whole.first; i < whole.first + whole.count; ++i) {
    if (!(elements.bounds[i] < kUnboundedElement) || (!elements.certain.empty() && !elements.certain[i]))
      continue;
    const double claimed = elements.claim.numbers[i], expected = elements.expected[i];
    if (!std::isfinite(claimed) || !std::isfinite(expected)) return std::nullopt;
    row.claimed.push_back(claimed);
    row.expected.push_back(expected);
    row.bounds.push_back(elements.bounds[i] + half_spacing(elements.claim.storage, claimed));
    row.adding.push_back(adding_error(claimed, expected, whole.count));
  }
  const std::vector<double> difference = row.apart(1);
  row.gain = row.moved(row.expected, difference);
  row.difference = row.moved(difference, difference);
  if (whole.savings.size() == 2 && std::ssize(row.claimed) == whole.count) {
    row.gain.bound -= whole.savings[0];
    row.difference.bound -= whole.savings[1];
  }
  row.differs = row.gain.is_outside() || row.difference.is_outside() || !row.are_inside(difference);
  return row;
}

// Whether the row is within its bounds around factor x, all elements, its gain and its difference. In the
// direction x^ - factor x = (x^ - x) + (1 - factor) x the bounds of both directions add up to one.
bool fits(const Row& row, double factor) {
  const std::vector<double> apart = row.apart(factor);
  if (!row.are_inside(apart)) return false;
  const MovedRow along = row.moved(row.expected, apart), rest = row.moved(apart, apart);
  const double both = row.difference.bound + std::abs(1 - factor) * row.gain.bound;
  return std::abs(along.by) <= row.gain.bound && rest.by <= std::min(rest.bound, both);
}

// The factor that explains all of these rows; nullopt if none does, or a single number
// could be explained by any.
std::optional<double> factor_of(const std::vector<Row>& rows) {
  double along = 0, size = 0;
  int64_t nonzero = 0;  // elements that differ from 0
  for (const Row& row : rows) {
    along += row.gain.by + row.gain.size;
    size += row.gain.size;
    for (size_t c = 0; c < row.bounds.size(); ++c) nonzero += row.bounds[c] < std::abs(row.expected[c]);
  }
  if (nonzero < 2 || !(size > 0)) return std::nullopt;
  const double factor = along / size;
  const bool explains = std::ranges::all_of(rows, [&](const Row& row) { return fits(row, factor); });
  return explains ? std::optional(factor) : std::nullopt;
}

}  // namespace

std::vector<std::vector<double>> judged_directions(VectorView expected, VectorView claimed) {
  std::vector<double> difference;
  for (size_t c = 0; c < expected.size(); ++c) {
    difference.push_back(claimed[c] - expected[c]);
    if (!std::isfinite(difference.back())) return {};
  }
  return {{expected.begin(), expected.end()}, std::move(difference)};
}

std::vector<WholeRow> rows_of(const RealClaim& claim) {
  std::vector<WholeRow> rows;
  const int64_t columns = claim.shape.back();
  for (int64_t first = 0; first < std::ssize(claim.numbers); first += columns) {
    std::vector<int64_t> index = index_of(first, claim.shape);
    index.pop_back();
    rows.push_back({first, columns, std::move(index)});
  }
  return rows;
}

void judge_rows(const JudgedElements& elements, const std::vector<WholeRow>& rows, const std::string& numbers,
                TensorAgreement& agreement) {
  std::vector<Row> differing;
  std::vector<RowFunctional> gains, differences;
  bool are_finite = true;
  for (const WholeRow& whole : rows) {
    std::optional<Row> row = judged(elements, whole);
    are_finite = are_finite && row;
    if (!row) continue;
    if (row->gain.size > 0) {  // of zeros nothing is said as a whole
      const bool is_judged = row->gain.bound < row->gain.size;
      gains.push_back({whole.first, whole.index, row->gain, is_judged});
      differences.push_back({whole.first, whole.index, row->difference, is_judged});
    }
    if (row->differs) differing.push_back(std::move(*row));
  }
  if (!gains.empty()) {
    agreement.functionals = {agreement_of("gain", true, gains),
                             agreement_of("difference", false, differences)};
  }
  if (agreement.agrees() || !are_finite) return;
  const std::optional<double> factor = factor_of(differing);
  if (!factor) return;
  const std::string fault =
      *factor == 0 ? "rows are zero"
                   : fmt::format("{} are {} of what they should be", numbers, factor_text(*factor));
  agreement.diagnosis = ExplainedRows{fault, std::ssize(differing)};
}

}  // namespace kvbound::sim
