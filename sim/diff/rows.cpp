#include "rows.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include <kvbound/sim/diff/claims/dump_tensors.hpp>

#include "differing_caches.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

// A claimed tensor's numbers, not to be copied. Integers are widened: those that a double does not hold are no positions.
struct Numbers {
  Positions shape;
  VectorView all;
  Dtype storage = Dtype::i64;
  std::vector<double> widened = {};
};

Numbers widened(const Positions& integers) {
  Numbers numbers{{std::ssize(integers)}, {}, Dtype::i64, {integers.begin(), integers.end()}};
  numbers.all = numbers.widened;
  return numbers;
}

std::optional<Numbers> numbers_of(const LayerClaims& claims, const std::string& tensor) {
  for (const RealTensor& real : real_tensors()) {
    if (tensor != real.name) continue;
    const auto& claim = claims.*real.claim;
    return claim ? std::optional(Numbers{claim->shape, claim->numbers, claim->storage}) : std::nullopt;
  }
  for (const IntegerTensor& integral : integer_tensors()) {
    if (tensor != integral.name) continue;
    const auto& claim = claims.*integral.claim;
    return claim ? std::optional(widened(*claim)) : std::nullopt;
  }
  if (!claims.kept) return std::nullopt;
  Positions all;
  for (const Positions& head : *claims.kept) all.insert(all.end(), head.begin(), head.end());
  return widened(all);
}

// Where a tensor's rows begin and end.
struct RowLayout {
  Positions extents;       // TensorRows::extents
  Positions begins;        // [rows + 1]: their first elements
  bool has_heads = false;  // whether the last of a row's index is a head

  int64_t rows() const { return std::ssize(begins) - 1; }
  int64_t row_of(int64_t element) const {
    return std::ranges::upper_bound(begins, element) - begins.begin() - 1;
  }
  VectorView row(VectorView all, int64_t row) const {
    return all.subspan(begins[row], begins[row + 1] - begins[row]);
  }
};

// Kept entries of each row of tensors with a row for each of them.
Positions entries_of_rows(bool of_rebuilds, const JudgedClaims& side) {
  Positions entries;
  if (!of_rebuilds) {
    for (const Positions& kept : side.claims.kept ? *side.claims.kept : side.judged.choices.kept) {
      entries.push_back(std::ssize(kept));
    }
    return entries;
  }
  for (const FollowedStep& step : side.judged.choices.steps)
    std::ranges::copy(step.rebuilt_rows, std::back_inserter(entries));
  return entries;
}

int64_t rebuilds_of(const JudgedClaims& side) {
  return std::ranges::count_if(side.judged.choices.steps, &FollowedStep::rebuilt);
}

// The extents of a tensor's rows: those of its dimensions that do not lie inside a row.
Positions extents_of(const DumpTensor& tensor, const Numbers& numbers, const LayerShape& shape,
                     const JudgedClaims& side) {
  Positions extents;
  for (const Extent extent : tensor.shape) {
    switch (extent) {
      case Extent::steps:
        extents.push_back(side.steps);
        break;
      case Extent::window_queries:
        extents.push_back(numbers.shape.front());
        break;
      case Extent::rebuilds:
        extents.push_back(rebuilds_of(side));
        break;
      case Extent::query_heads:
        extents.push_back(shape.query_heads);
        break;
      case Extent::kv_heads:
      case Extent::kept_of_all_heads:
        extents.push_back(shape.kv_heads);
        break;
      case Extent::kept_of_rebuilds:
        extents.insert(extents.end(), {rebuilds_of(side), shape.kv_heads});
        break;
      case Extent::kv_head_offsets:
      case Extent::head_dim:
      case Extent::prompt_tokens:
      case Extent::scored:
      case Extent::tokens:
        break;
    }
  }
  return extents;
}

RowLayout layout_of(const DumpTensor& tensor, const Numbers& numbers, const LayerShape& shape,
                    const JudgedClaims& side) {
  RowLayout layout{extents_of(tensor, numbers, shape, side), {0}};
  const auto has = [&](Extent extent) {
    return std::ranges::find(tensor.shape, extent) != tensor.shape.end();
  };
  const bool of_rebuilds = has(Extent::kept_of_rebuilds),
             ragged = of_rebuilds || has(Extent::kept_of_all_heads);
  layout.has_heads = ragged || has(Extent::kv_heads) || has(Extent::query_heads);
  const auto elements = std::ssize(numbers.all);
  const int64_t rows =
      std::reduce(layout.extents.begin(), layout.extents.end(), int64_t{1}, std::multiplies());
  Positions lengths;
  if (ragged) {
    lengths = entries_of_rows(of_rebuilds, side);
    const int64_t columns = has(Extent::head_dim) ? shape.head_dim : 1;
    for (int64_t& length : lengths) length *= columns;
  }
  lengths.resize(rows, rows > 0 ? elements / rows : 0);
  for (const int64_t length : lengths)
    layout.begins.push_back(std::min(layout.begins.back() + length, elements));
  // A wrong number of rebuilt entries leaves all of them undecided, wherever their rows begin.
  if (rows > 0) layout.begins.back() = elements;
  return layout;
}

// One dump's numbers of a tensor, in rows, and what the reference says of each row.
struct JudgedRows {
  Numbers numbers;
  RowLayout layout;
  std::vector<bool> wrong, undecided;

  VectorView row(int64_t row) const { return layout.row(numbers.all, row); }
};

// Whether a tensor of this layer has numbers, none of which any bound tells from others.
bool says_nothing(const DumpTensor& tensor, const TensorAgreement& found) {
  return !tensor.derived && found.judged == 0 && !found.is_judged_as_a_whole() && !found.all_zero;
}

// Whether zeros in place of a row of numbers would not be found.
bool is_blind(const TensorAgreement& found, const RowLayout& layout, int64_t row) {
  if (found.told.empty()) return false;
  const auto begin = found.told.begin();
  if (std::find(begin + layout.begins[row], begin + layout.begins[row + 1], true) !=
      begin + layout.begins[row + 1])
    return false;
  return std::ranges::none_of(found.functionals, [&](const FunctionalAgreement& functional) {
    return !functional.judged_rows.empty() && functional.judged_rows[row];
  });
}

JudgedRows judged_rows(const DumpTensor& tensor, Numbers numbers, const LayerShape& shape,
                       const JudgedClaims& side) {
  JudgedRows rows{std::move(numbers), {}, {}, {}};
  rows.layout = layout_of(tensor, rows.numbers, shape, side);
  const TensorAgreement& found =
      *std::ranges::find(side.judged.tensors, tensor.name, &TensorAgreement::tensor);
  const auto mark = [&](const Positions& elements, std::vector<bool>& marks) {
    if (marks.empty()) return;
    for (const int64_t element : elements) marks[rows.layout.row_of(element)] = true;
  };
  rows.wrong.resize(rows.layout.rows());
  mark(found.outside_at, rows.wrong);
  for (const FunctionalAgreement& functional : found.functionals) {
    for (const int64_t row : functional.outside_at) rows.wrong[row] = true;
  }
  for (int64_t row = 0; tensor.name == "kept" && row < rows.layout.rows(); ++row) {
    if (rows.row(row).empty()) rows.wrong[row] = true;  // a KV head keeps something
  }
  rows.undecided.assign(rows.layout.rows(), says_nothing(tensor, found));
  for (int64_t row = 0; row < rows.layout.rows(); ++row) {
    if (!tensor.derived && is_blind(found, rows.layout, row)) rows.undecided[row] = true;
  }
  mark(found.undecided_at, rows.undecided);
  return rows;
}

// Whether a row is of caches that differ between the implementations.
bool is_apart(const DumpTensor& tensor, const RowLayout& layout, const Positions& index, int64_t kv_heads,
              const DifferingCaches& caches) {
  const auto head = [&] { return index.back() / (layout.extents.back() / kv_heads); };
  const auto at = [&](const std::vector<bool>& differ) {
    if (layout.has_heads) return bool{differ[index.front() * kv_heads + head()]};
    const auto first = differ.begin() + index.front() * kv_heads;
    return std::find(first, first + kv_heads, true) != first + kv_heads;
  };
  switch (tensor.cache) {
    case CacheOf::none:
      return false;
    case CacheOf::kept:
      return caches.kept[head()];
    case CacheOf::prompt:
      return caches.prompt[head()];
    case CacheOf::attended:
      return at(caches.attended);
    case CacheOf::history:
      return at(caches.history);
    case CacheOf::left:
      return at(caches.left);
    case CacheOf::merged:
      return at(caches.merged);
    case CacheOf::rebuilt:
      return at(caches.rebuilt);
  }
  return false;  // not reached
}

bool are_identical(VectorView a, VectorView b) {
  return std::ranges::equal(
      a, b, {}, [](double number) { return std::bit_cast<uint64_t>(number); },
      [](double number) { return std::bit_cast<uint64_t>(number); });
}

// The coarser of two types.
Dtype coarser(Dtype a, Dtype b) {
  return real_format(a)->fraction_bits <= real_format(b)->fraction_bits ? a : b;
}

// Compares the rows of one tensor that two dumps have.
class RowComparison {
 public:
  // accumulate: the coarser of the types in which the dumps' numbers were added
  RowComparison(const DumpTensor& tensor, JudgedRows a, JudgedRows b, Dtype accumulate, int64_t kv_heads,
                const DifferingCaches& caches)
      : tensor_(tensor),
        a_(std::move(a)),
        b_(std::move(b)),
        unit_(tensor.integral ? Dtype::i64
                              : coarser(accumulate, coarser(a_.numbers.storage, b_.numbers.storage))),
        kv_heads_(kv_heads),
        caches_(caches) {}

  TensorRows result() {
    result_.tensor = tensor_.name;
    const bool a_is_shorter = a_.layout.rows() <= b_.layout.rows();
    result_.extents = (a_is_shorter ? a_ : b_).layout.extents;
    const int64_t rows = (a_is_shorter ? a_ : b_).layout.rows();
    for (int64_t row = 0; row < rows; ++row) add(row);
    return std::move(result_);
  }

 private:
  void add(int64_t row) {
    VectorView a = a_.row(row), b = b_.row(row);
    if (tensor_.shape.back() == Extent::tokens) {  // those of the longer dump's last steps are still to come
      const size_t both = std::min(a.size(), b.size());
      a = a.first(both);
      b = b.first(both);
    }
    DifferingRow found{row, verdict(row, a, b)};
    ++result_.counts[static_cast<size_t>(found.verdict)];
    if (found.verdict == RowVerdict::identical) return;
    if (found.verdict == RowVerdict::reordered && !tensor_.integral) measure(a, b, found);
    result_.differing.push_back(found);
  }

  RowVerdict verdict(int64_t row, VectorView a, VectorView b) const {
    if (a_.wrong[row] && b_.wrong[row]) return RowVerdict::both_wrong;
    if (a_.wrong[row]) return RowVerdict::wrong_a;
    if (b_.wrong[row]) return RowVerdict::wrong_b;
    if (are_identical(a, b)) return RowVerdict::identical;
    if (a_.undecided[row] || b_.undecided[row]) return RowVerdict::undecided;
    const Positions index = index_of(row, result_.extents);
    if (is_apart(tensor_, a_.layout, index, kv_heads_, caches_)) return RowVerdict::other_cache;
    // A kept set that is empty in one of them is wrong there, and what it would hold cannot be compared.
    return a.size() == b.size() || tensor_.integral ? RowVerdict::reordered : RowVerdict::undecided;
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
      all.farthest = {index_of(element, a_.numbers.shape), a[i], b[i], ulps};
    }
    found.row_ulps = farthest / spacing(largest);
    all.row_ulps = std::max(all.row_ulps, *found.row_ulps);
  }

  // Of neighbouring numbers at x.
  double spacing(double x) const { return 2 * half_spacing(unit_, x); }

  const DumpTensor& tensor_;
  const JudgedRows a_, b_;
  const Dtype unit_;  // of distances
  const int64_t kv_heads_;
  const DifferingCaches& caches_;
  TensorRows result_;
};

std::vector<ApartHead> apart_heads(const DifferingCaches& caches, int64_t kv_heads) {
  std::vector<ApartHead> heads;
  for (int64_t g = 0; g < kv_heads; ++g) {
    for (auto i = static_cast<size_t>(g); i < caches.attended.size(); i += kv_heads) {
      if (!caches.attended[i]) continue;
      heads.push_back({g, static_cast<int64_t>(i) / kv_heads});
      break;
    }
  }
  return heads;
}

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

LayerRows compare_rows(const LayerShape& shape, const JudgedClaims& a, const JudgedClaims& b) {
  const DifferingCaches caches = differing_caches(a.judged.choices, b.judged.choices);
  LayerRows result{{}, apart_heads(caches, shape.kv_heads)};
  for (const DumpTensor& tensor : dump_tensors()) {
    std::optional<Numbers> own = numbers_of(a.claims, tensor.name), other = numbers_of(b.claims, tensor.name);
    if (!own || !other) continue;
    result.tensors.push_back(RowComparison(tensor, judged_rows(tensor, std::move(*own), shape, a),
                                           judged_rows(tensor, std::move(*other), shape, b),
                                           coarser(a.accumulate, b.accumulate), shape.kv_heads, caches)
                                 .result());
  }
  return result;
}

}  // namespace kvbound::sim
