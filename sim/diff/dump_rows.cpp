#include "dump_rows.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <kvbound/sim/diff/claims/dump_tensors.hpp>

#include "differing_caches.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

RowNumbers widened(const Positions& integers) { return {{std::ssize(integers)}, integers}; }

std::optional<RowNumbers> numbers_of(const LayerClaims& claims, const std::string& tensor) {
  for (const RealTensor& real : real_tensors()) {
    if (tensor != real.name) continue;
    const auto& claim = claims.*real.claim;
    return claim ? std::optional(RowNumbers(*claim)) : std::nullopt;
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

bool has(const DumpTensor& tensor, Extent extent) {
  return std::ranges::find(tensor.shape, extent) != tensor.shape.end();
}

// Whether the last of a row's index is a head.
bool has_heads(const DumpTensor& tensor) {
  return has(tensor, Extent::kept_of_rebuilds) || has(tensor, Extent::kept_of_all_heads) ||
         has(tensor, Extent::kv_heads) || has(tensor, Extent::query_heads);
}

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
Positions extents_of(const DumpTensor& tensor, const RowNumbers& numbers, const LayerShape& shape,
                     const JudgedClaims& side) {
  Positions extents;
  for (const Extent extent : tensor.shape) {
    switch (extent) {
      case Extent::steps:
        extents.push_back(side.steps);
        break;
      case Extent::window_queries:
        extents.push_back(numbers.shape().front());
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

RowLayout layout_of(const DumpTensor& tensor, const RowNumbers& numbers, const LayerShape& shape,
                    const JudgedClaims& side) {
  const auto elements = std::ssize(numbers.numbers());
  RowLayout layout = RowLayout::uniform(extents_of(tensor, numbers, shape, side), elements);
  const bool of_rebuilds = has(tensor, Extent::kept_of_rebuilds);
  if (!of_rebuilds && !has(tensor, Extent::kept_of_all_heads)) return layout;
  Positions lengths = entries_of_rows(of_rebuilds, side);
  const int64_t columns = has(tensor, Extent::head_dim) ? shape.head_dim : 1;
  lengths.resize(layout.rows(), layout.rows() > 0 ? elements / columns / layout.rows() : 0);
  for (int64_t row = 0; row < layout.rows(); ++row)
    layout.begins[row + 1] = std::min(layout.begins[row] + lengths[row] * columns, elements);
  // A wrong number of rebuilt entries leaves all of them undecided, wherever their rows begin.
  if (layout.rows() > 0) layout.begins.back() = elements;
  return layout;
}

JudgedRows judged_rows_of(const DumpTensor& tensor, RowNumbers numbers, const LayerShape& shape,
                          const JudgedClaims& side) {
  RowLayout layout = layout_of(tensor, numbers, shape, side);
  const TensorAgreement& found =
      *std::ranges::find(side.judged.tensors, tensor.name, &TensorAgreement::tensor);
  JudgedRows rows = judged_rows(std::move(numbers), std::move(layout), found, !tensor.derived);
  for (int64_t row = 0; tensor.name == "kept" && row < rows.layout.rows(); ++row) {
    if (rows.row(row).empty()) rows.wrong[row] = true;  // a KV head keeps something
  }
  return rows;
}

// Whether a row is of caches that differ between the implementations.
bool is_apart(const DumpTensor& tensor, const RowLayout& layout, const Positions& index, int64_t kv_heads,
              const DifferingCaches& caches) {
  const auto head = [&] { return index.back() / (layout.extents.back() / kv_heads); };
  const auto at = [&](const std::vector<bool>& differ) {
    if (has_heads(tensor)) return bool{differ[index.front() * kv_heads + head()]};
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

std::vector<ApartHead> apart_heads(const DifferingCaches& caches, int64_t kv_heads) {
  std::vector<ApartHead> heads;
  for (int64_t g = 0; g < kv_heads; ++g) {
    if (caches.attended.empty() && caches.prompt[g]) heads.push_back({g, 0});  // there are no steps
    for (auto i = static_cast<size_t>(g); i < caches.attended.size(); i += kv_heads) {
      if (!caches.attended[i]) continue;
      heads.push_back({g, static_cast<int64_t>(i) / kv_heads});
      break;
    }
  }
  return heads;
}

}  // namespace

LayerRows compare_layer_rows(const LayerShape& shape, const JudgedClaims& a, const JudgedClaims& b) {
  const DifferingCaches caches = differing_caches(a.judged.choices, b.judged.choices);
  LayerRows result{{}, apart_heads(caches, shape.kv_heads)};
  for (const DumpTensor& tensor : dump_tensors()) {
    std::optional<RowNumbers> own = numbers_of(a.claims, tensor.name),
                              other = numbers_of(b.claims, tensor.name);
    if (!own || !other) continue;
    const JudgedRows of_a = judged_rows_of(tensor, std::move(*own), shape, a),
                     of_b = judged_rows_of(tensor, std::move(*other), shape, b);
    RowPairs pairs;
    for (int64_t row = 0; row < std::min(of_a.layout.rows(), of_b.layout.rows()); ++row)
      pairs.rows.emplace_back(row, row);
    pairs.is_of_other_cache = [&](int64_t row) {
      return is_apart(tensor, of_a.layout, index_of(row, of_a.layout.extents), shape.kv_heads, caches);
    };
    // Tokens of the longer dump's last steps are still to come in the shorter one.
    pairs.to_the_shorter = tensor.shape.back() == Extent::tokens;
    result.tensors.push_back(
        compare_rows(tensor.name, of_a, of_b, pairs, coarser(a.accumulate, b.accumulate)));
  }
  return result;
}

}  // namespace kvbound::sim
