#include "rows.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <numeric>

namespace kvbound::sim {
namespace {

bool are_identical(VectorView a, VectorView b) {
  return std::ranges::equal(
      a, b, {}, [](double number) { return std::bit_cast<uint64_t>(number); },
      [](double number) { return std::bit_cast<uint64_t>(number); });
}

// Whether a tensor of this layer has numbers, none of which any bound tells from others.
bool says_nothing(const TensorAgreement& found) {
  return found.judged == 0 && !found.is_judged_as_a_whole() && !found.all_zero;
}

// Whether zeros in place of a row of numbers would not be found.
bool is_blind(const TensorAgreement& found, const RowLayout& layout, int64_t row) {
  if (found.decidable.empty()) return false;
  const auto begin = found.decidable.begin();
  if (std::find(begin + layout.begins[row], begin + layout.begins[row + 1], true) !=
      begin + layout.begins[row + 1])
    return false;
  return std::ranges::none_of(found.functionals, [&](const FunctionalAgreement& functional) {
    const auto judged = std::ranges::lower_bound(functional.judged_at, layout.begins[row]);
    return judged != functional.judged_at.end() && *judged < layout.begins[row + 1];
  });
}

// Compares rows of one tensor.
class RowComparison {
 public:
  RowComparison(const JudgedRows& a, const JudgedRows& b, const RowPairs& pairs, Dtype unit)
      : a_(a), b_(b), pairs_(pairs), unit_(unit) {}

  TensorRows result(const std::string& tensor) {
    result_.tensor = tensor;
    result_.extents = a_.layout.extents;
    result_.extents_b = b_.layout.extents;
    for (const auto& [own, other] : pairs_.rows) add(own, other);
    return std::move(result_);
  }

 private:
  void add(int64_t own, int64_t other) {
    VectorView a = a_.row(own), b = b_.row(other);
    if (pairs_.to_the_shorter) {
      const size_t both = std::min(a.size(), b.size());
      a = a.first(both);
      b = b.first(both);
    }
    DifferingRow found{own, other, verdict(own, other, a, b)};
    ++result_.counts[static_cast<size_t>(found.verdict)];
    if (found.verdict == RowVerdict::identical) return;
    if (found.verdict == RowVerdict::reordered && !a_.numbers.integral()) measure(a, b, found);
    result_.differing.push_back(found);
  }

  RowVerdict verdict(int64_t own, int64_t other, VectorView a, VectorView b) const {
    if (a_.wrong[own] && b_.wrong[other]) return RowVerdict::both_wrong;
    if (a_.wrong[own]) return RowVerdict::wrong_a;
    if (b_.wrong[other]) return RowVerdict::wrong_b;
    if (are_identical(a, b)) return RowVerdict::identical;
    if (a_.undecided[own] || b_.undecided[other]) return RowVerdict::undecided;
    if (pairs_.is_of_other_cache && pairs_.is_of_other_cache(own)) return RowVerdict::other_cache;
    // A kept set that is empty in one of them is wrong there, and what it would hold cannot be compared.
    return a.size() == b.size() || a_.numbers.integral() ? RowVerdict::reordered : RowVerdict::undecided;
  }

  // The largest distances within a row.
  void measure(VectorView a, VectorView b, DifferingRow& found) {
    if (!result_.distances) result_.distances = Distances{unit_, {{}, 0, 0, -1}};
    Distances& all = *result_.distances;
    assert(a.size() == b.size());
    double largest = 0, farthest = 0;
    found.ulps = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double distance = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]),
                   size = std::max(std::abs(a[i]), std::abs(b[i]));
      const double ulps = distance / spacing(size);
      largest = std::max(largest, size);
      farthest = std::max(farthest, distance);
      found.ulps = std::max(*found.ulps, ulps);
      if (ulps <= all.farthest.ulps) continue;
      const auto element = a_.layout.begins[found.row] + static_cast<int64_t>(i);
      all.farthest = {index_of(element, a_.numbers.shape()), a[i], b[i], ulps};
    }
    found.row_ulps = farthest / spacing(largest);
    all.row_ulps = std::max(all.row_ulps, *found.row_ulps);
  }

  // Of neighbouring numbers at x.
  double spacing(double x) const { return 2 * half_spacing(unit_, x); }

  const JudgedRows &a_, &b_;
  const RowPairs& pairs_;
  const Dtype unit_;  // of distances
  TensorRows result_;
};

}  // namespace

const char* word(RowVerdict verdict) {
  switch (verdict) {
    case RowVerdict::both_wrong:
      return "both wrong";
    case RowVerdict::wrong_a:
      return "wrong: A";
    case RowVerdict::wrong_b:
      return "wrong: B";
    case RowVerdict::identical:
      return "identical";
    case RowVerdict::undecided:
      return "undecided";
    case RowVerdict::other_cache:
      return "other cache";
    case RowVerdict::reordered:
      return "reordered";
  }
  return "";  // not reached
}

int64_t TensorRows::rows() const { return std::reduce(counts.begin(), counts.end()); }

Dtype coarser(Dtype a, Dtype b) {
  return real_format(a)->fraction_bits <= real_format(b)->fraction_bits ? a : b;
}

RowLayout RowLayout::uniform(std::vector<int64_t> extents, int64_t elements) {
  RowLayout layout{std::move(extents)};
  const int64_t rows =
      std::reduce(layout.extents.begin(), layout.extents.end(), int64_t{1}, std::multiplies());
  for (int64_t row = 0; row <= rows; ++row) layout.begins.push_back(rows > 0 ? row * (elements / rows) : 0);
  return layout;
}

int64_t RowLayout::row_of(int64_t element) const {
  return std::ranges::upper_bound(begins, element) - begins.begin() - 1;
}

JudgedRows judged_rows(RowNumbers numbers, RowLayout layout, const TensorAgreement& found,
                       bool needs_evidence) {
  JudgedRows rows{std::move(numbers), std::move(layout), {}, {}};
  const int64_t count = rows.layout.rows();
  const auto mark = [&](const std::vector<int64_t>& elements, std::vector<bool>& marks) {
    if (marks.empty()) return;
    for (const int64_t element : elements) marks[rows.layout.row_of(element)] = true;
  };
  rows.wrong.resize(count);
  mark(found.outside_at, rows.wrong);
  for (const FunctionalAgreement& functional : found.functionals) mark(functional.outside_at, rows.wrong);
  rows.undecided.assign(count, needs_evidence && says_nothing(found));
  for (int64_t row = 0; row < count; ++row) {
    if (needs_evidence && is_blind(found, rows.layout, row)) rows.undecided[row] = true;
  }
  mark(found.undecided_at, rows.undecided);
  return rows;
}

TensorRows compare_rows(const std::string& tensor, const JudgedRows& a, const JudgedRows& b,
                        const RowPairs& pairs, Dtype accumulate) {
  const Dtype unit = a.numbers.integral()
                         ? Dtype::i64
                         : coarser(accumulate, coarser(a.numbers.storage(), b.numbers.storage()));
  return RowComparison(a, b, pairs, unit).result(tensor);
}

}  // namespace kvbound::sim
