#include "chances.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kAll = ChanceTest::kAll;

ChanceTest test_of(const std::string& functional, std::vector<int64_t> at, const ChanceRow& row) {
  const reference::ChanceError& error = row.error;
  const auto deviation = [&](double variance) { return std::sqrt(error.variance + variance) / row.size; };
  ChanceTest test{functional, std::move(at), 1 + row.by / row.size};
  test.bias = (error.bias + error.alike()) / row.size;
  test.deviation = deviation(0);
  for (const UndeclaredRounding& rounding : undeclared_roundings()) {
    const double unit = rounding.unit * rounding.unit;
    test.undeclared.push_back(
        deviation(unit * (rounding.weights * error.by_weights + rounding.parts * error.by_parts +
                          rounding.products * error.by_products)));
  }
  return test;
}

// The tests of one kind, of which the farthest counts.
class Kind {
 public:
  // least  so many rows a test is of
  Kind(const std::string& functional, int64_t least) : functional_(functional), least_(least) {}

  void add(std::vector<int64_t> at, const ChanceRow& row) {
    if (row.rows < least_) return;
    ++count_;
    ChanceTest test = test_of(functional_, std::move(at), row);
    if (!farthest_ || test.deviations() > farthest_->deviations()) farthest_ = std::move(test);
  }
  void append_to(ChanceTests& tests) {
    tests.count += count_;
    if (farthest_) tests.farthest.push_back(std::move(*farthest_));
  }

 private:
  const std::string& functional_;
  int64_t least_, count_ = 0;
  std::optional<ChanceTest> farthest_;
};

}  // namespace

void ChanceRow::add(const ChanceRow& other) {
  by += other.by;
  size += other.size;
  error.add(other.error);
  rows += other.rows;
}

ChanceRow chance_row(const reference::OutputFunctionals& expected, VectorView direction, VectorView claimed,
                     Dtype storage) {
  const std::optional<reference::ChanceError> error = expected.chance(direction);
  if (!error) return {};
  ChanceRow row{0, 0, *error};
  const std::vector<double>& output = expected.output();
  const std::vector<double> merged = expected.merged();
  const double summing = static_cast<double>(direction.size() + 2) * 0x1p-53;
  for (size_t c = 0; c < direction.size(); ++c) {
    const double half = half_spacing(storage, claimed[c]), stored = direction[c] * half;
    row.by += direction[c] * (claimed[c] - output[c]);
    row.size += direction[c] * direction[c];
    row.error.variance += stored * stored;
    row.error.stored.add(merged[c] < 0 ? -stored : stored, std::abs(merged[c]) / (2 * half));
    row.error.bias += summing * std::abs(direction[c]) * (std::abs(claimed[c]) + std::abs(output[c]));
  }
  const bool is_bounded =
      row.size > 0 && std::isfinite(row.by) && row.error.variance < kInfinity && row.error.bias < kInfinity;
  row.rows = is_bounded ? 1 : 0;
  return row;
}

void add_tests(const std::string& functional, const std::vector<ChanceRow>& rows, int64_t heads,
               ChanceTests& tests) {
  const int64_t steps = heads == 0 ? 0 : std::ssize(rows) / heads;
  std::vector<ChanceRow> of_head(heads), of_step(steps);
  ChanceRow all;
  Kind single(functional, 1), head(functional, 2), step(functional, 2), layer(functional, 2);
  for (int64_t t = 0; t < steps; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const ChanceRow& row = rows[t * heads + h];
      if (row.rows == 0) continue;
      single.add({t, h}, row);
      for (ChanceRow* sum : {&of_head[h], &of_step[t], &all}) sum->add(row);
    }
  }
  for (int64_t h = 0; h < heads; ++h) head.add({kAll, h}, of_head[h]);
  for (int64_t t = 0; t < steps; ++t) step.add({t, kAll}, of_step[t]);
  if (heads > 1 && steps > 1) layer.add({kAll, kAll}, all);
  for (Kind* kind : {&single, &head, &step, &layer}) kind->append_to(tests);
}

}  // namespace kvbound::sim
