#include "differing_rows.hpp"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "diagnosis.hpp"

namespace kvbound::sim {
namespace {

constexpr int64_t kMostRows = 8, kMostNumbers = int64_t{1} << 26;

Matrix copy_of(MatrixView from) {
  Matrix copy = Matrix::for_overwrite(from.rows, from.cols);
  for (int64_t j = 0; j < from.rows; ++j) std::ranges::copy(from.row(j), copy.row(j).begin());
  return copy;
}

}  // namespace

void DifferingRows::add(int64_t row, int64_t query, MatrixView queries, MatrixView keys, MatrixView values,
                        VectorView votes, const reference::AttentionErrors& errors,
                        const reference::Arithmetic& arithmetic, const OfKvHeads& of_kv_heads) {
  const std::lock_guard lock(mutex_);
  if (row >= end_) return;
  rows_[row] = {query,
                copy_of(queries),
                copy_of(keys),
                copy_of(values),
                {votes.begin(), votes.end()},
                errors,
                arithmetic,
                of_kv_heads ? of_kv_heads(queries.row(query)) : Matrix()};
  // The longest beginning of all rows that fits, in whatever order they come.
  int64_t count = 0, numbers = 0;
  auto last = rows_.begin();
  for (; last != rows_.end() && count < kMostRows; ++last, ++count) {
    numbers += last->second.keys.numbers().size() + last->second.values.numbers().size();
    if (count > 0 && numbers > kMostNumbers) break;
  }
  if (last != rows_.end()) end_ = last->first;
  rows_.erase(last, rows_.end());
}

std::optional<ExplainedRows> DifferingRows::diagnosis(VectorView expected) const {
  const int64_t head_dim = claim_.shape.back(), heads = claim_.shape[claim_.shape.size() - 2];
  std::deque<reference::OutputFunctionals> functionals;
  std::vector<DifferingOutput> differing;
  for (const auto& [at, row] : rows_) {
    const VectorView claimed = VectorView(claim_.numbers).subspan(at * head_dim, head_dim);
    const MatrixView outputs(expected.data() + at / heads * heads * head_dim, heads, head_dim);
    functionals.emplace_back(row.errors, row.query, row.values, row.votes, row.arithmetic);
    differing.push_back({row.queries.row(row.query), row.keys, row.values, row.votes, scale_, claimed,
                         at % heads, outputs, row.of_kv_heads,
                         fit_of(row.errors, row.query, functionals.back(), claimed, claim_.storage)});
  }
  std::optional<std::string> fault = sim::diagnosis(differing);
  if (!fault) return std::nullopt;
  return ExplainedRows{std::move(*fault), std::ssize(differing)};
}

}  // namespace kvbound::sim
