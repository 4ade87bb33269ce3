#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/report/report.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::report_csv_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> result(1);
  for (const char c : line) {
    if (c == ',') {
      result.emplace_back();
    } else {
      result.back() += c;
    }
  }
  return result;
}

// What the rows of single query heads have in a column.
std::vector<std::string> column(const std::string& csv, const std::string& name) {
  std::istringstream lines(csv);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = fields(line);
  const int64_t index = std::ranges::find(names, name) - names.begin();
  const auto head = static_cast<size_t>(std::ranges::find(names, "head") - names.begin());
  std::vector<std::string> result;
  while (std::getline(lines, line)) {
    const std::vector<std::string> row = fields(line);
    EXPECT_EQ(row.size(), names.size());
    if (row.at(head) != "all") result.push_back(row.at(index));
  }
  return result;
}

// One layer of two steps and two query heads that merges.
Report merging_report(const std::vector<MergeChange>& changes) {
  LayerMetrics metrics;
  metrics.perturbation = metrics.relative = metrics.kept_mass = Matrix(2, 2);
  metrics.layer_perturbation = metrics.layer_relative = {0, 0};
  metrics.merges.emplace().changes = changes;
  RunResult run;
  run.run = {{"h2o+keepkv", parse_policy("h2o+keepkv")}, parse_budget("20%"), "reference"};
  run.layers = {metrics};
  Report report;
  report.result.scope = {{0}, 2};
  report.result.runs = {run};
  return report;
}

TEST(CsvReport, HasTheLargestChangeOfAStepsMergesPerHeadAndNothingWhereNothingMerged) {
  const Report report =
      merging_report({{-1, 0, 9, {}}, {0, 0, 1, {}}, {0, 0, 3, {}}, {0, 0, 2, {}}, {1, 1, 0, {}}});
  EXPECT_EQ(column(csv_report({report}), "merge_perturbation"), (std::vector<std::string>{"3", "", "", "0"}));
}

TEST(CsvReport, SaysThatAMergesChangeIsNoNumberWhateverElseMerged) {
  const Report report = merging_report(
      {{0, 0, kNan, {}}, {0, 0, 1, {}}, {0, 1, 1, {}}, {0, 1, kNan, {}}, {1, 0, kNan, {}}, {1, 1, 2, {}}});
  EXPECT_EQ(column(csv_report({report}), "merge_perturbation"),
            (std::vector<std::string>{"nan", "nan", "nan", "2"}));
}

}  // namespace
}  // namespace kvbound::sim::report_csv_test
