#include <algorithm>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/figures/csv.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>

#include "support/random_layer.hpp"

namespace kvbound::sim::replay_cubes_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A CSV line's fields; quoted ones without their quotes.
std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> result(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool doubled = quoted && line.compare(i, 2, "\"\"") == 0;
    if (line[i] == '"' && !doubled) {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      result.emplace_back();
    } else {
      i += doubled;
      result.back() += line[i];
    }
  }
  return result;
}

// The lines of a CSV table, with fields by column name.
struct Table {
  explicit Table(const std::string& csv) {
    std::istringstream lines(csv);
    std::string line;
    std::getline(lines, line);
    names = fields(line);
    while (std::getline(lines, line)) {
      const std::vector<std::string> row = fields(line);
      EXPECT_EQ(row.size(), names.size()) << line;
      rows.emplace_back();
      for (size_t i = 0; i < std::min(row.size(), names.size()); ++i) rows.back()[names[i]] = row[i];
    }
  }

  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> rows;
};

// The values of a column in the rows of single query heads.
std::vector<std::string> column(const std::string& csv, const std::string& name) {
  std::vector<std::string> result;
  for (const auto& row : Table(csv).rows) {
    if (row.at("head") != "all") result.push_back(row.at(name));
  }
  return result;
}

std::string csv_of(const ReplayReport& report) {
  const Part part = replay_part(report, std::nullopt, ReplayDetail::rows);
  return csv_headings(part) + csv_rows(part);
}

// One layer of two steps and two query heads with merges.
ReplayReport merging_report(const std::vector<MergeChange>& changes) {
  LayerMetrics metrics;
  metrics.perturbation = metrics.relative = metrics.kept_mass = Matrix(2, 2);
  metrics.layer_perturbation = metrics.layer_relative = {0, 0};
  metrics.merges.emplace().changes = changes;
  RunResult run;
  run.run = {{"h2o+keepkv", parse_policy("h2o+keepkv")}, parse_budget("20%"), "reference"};
  run.layers = {metrics};
  ReplayReport report;
  report.result.scope = {{0}, 2};
  report.result.trace.shape = {2, 1};
  run.budgets = {{9}};
  report.result.runs = {run};
  return report;
}

TEST(ReplayCubes, HasTheLargestChangeOfAStepsMergesPerHeadAndNothingWhereNothingMerged) {
  const ReplayReport report =
      merging_report({{-1, 0, 9, {}}, {0, 0, 1, {}}, {0, 0, 3, {}}, {0, 0, 2, {}}, {1, 1, 0, {}}});
  EXPECT_EQ(column(csv_of(report), "merge_perturbation"), (std::vector<std::string>{"3", "", "", "0"}));
}

TEST(ReplayCubes, LeaveAMergesChangeEmptyIfOneIsNoNumberWhateverElseMerged) {
  const ReplayReport report = merging_report(
      {{0, 0, kNan, {}}, {0, 0, 1, {}}, {0, 1, 1, {}}, {0, 1, kNan, {}}, {1, 0, kNan, {}}, {1, 1, 2, {}}});
  EXPECT_EQ(column(csv_of(report), "merge_perturbation"), (std::vector<std::string>{"", "", "", "2"}));
}

// Four different numbers from `first` on, which a double holds exactly.
Matrix figures(double first) {
  Matrix numbers(2, 2);
  for (int64_t i = 0; i < 4; ++i) numbers(i / 2, i % 2) = first + static_cast<double>(i) / 8;
  return numbers;
}

// Metrics of two steps and two query heads; every matrix starts from a different number.
LayerMetrics metrics_from(double first) {
  LayerMetrics metrics;
  metrics.perturbation = figures(first + 1);
  metrics.relative = figures(first + 2);
  metrics.kept_mass = figures(first + 3);
  metrics.layer_perturbation = {first + 4, first + 5};
  metrics.layer_relative = {first + 6, first + 7};
  return metrics;
}

LayerMetrics evicting_metrics(double first) {
  LayerMetrics metrics = metrics_from(first);
  metrics.bound = figures(2 * (first + 1));
  metrics.rounding = Matrix(2, 2);
  metrics.stage_one_mass = figures(first + 8);
  return metrics;
}

LayerMetrics merging_metrics(double first) {
  LayerMetrics metrics = metrics_from(first);
  MergeMetrics& merges = metrics.merges.emplace();
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t h = 0; h < 2; ++h) merges.changes.push_back({t, h, figures(first + 9)(t, h), {}});
  }
  LaterQueries& later = merges.later.emplace();
  later.perturbation = figures(first + 10);
  later.prediction_error = figures(first + 11);
  later.value_distance = figures(first + 12);
  later.bound = figures(first + 13);
  later.shared_bound = figures(first + 14);
  later.joint_bound = figures(first + 15);
  later.variation_bound = figures(first + 16);
  later.sag = figures(first + 17);
  later.share = figures(first + 18);
  return metrics;
}

// Two runs of layers 3 and 7.
ReplayReport report_of(const std::string& path) {
  RunResult evicting, merging;
  evicting.run = {{"h2o", parse_policy("h2o")}, parse_budget("20%"), "reference"};
  evicting.entries = 12;
  merging.run = {{"mine", parse_policy("h2o+keepkv")}, parse_budget("9"), "emulated"};
  merging.entries = 9;
  evicting.layers = {evicting_metrics(100), evicting_metrics(200)};
  merging.layers = {merging_metrics(300), merging_metrics(400)};
  ReplayReport report;
  report.result.trace.path = path;
  report.result.trace.shape = {2, 1};
  evicting.budgets = merging.budgets = HeadBudgets(8, {9});
  report.result.scope = {{3, 7}, 2};
  report.result.runs = {evicting, merging};
  return report;
}

using Row = std::map<std::string, std::string>;

const std::vector<std::string> kNames{"trace",
                                      "label",
                                      "policy",
                                      "budget",
                                      "entries",
                                      "backend",
                                      "layer",
                                      "step",
                                      "head",
                                      "perturbation",
                                      "relative",
                                      "bound",
                                      "centred_bound",
                                      "tightness",
                                      "violations",
                                      "kept_mass",
                                      "stage_one_mass",
                                      "stage_one_low",
                                      "merge_perturbation",
                                      "later_perturbation",
                                      "prediction_error",
                                      "value_distance",
                                      "later_bound",
                                      "later_shared_bound",
                                      "later_joint_bound",
                                      "later_variation_bound",
                                      "sag",
                                      "layer_perturbation",
                                      "layer_relative"};

// A row with the columns that all runs have, for one step and query head.
Row row_of(double first, const std::string& path, int64_t layer, int64_t t, int64_t h) {
  Row row;
  for (const std::string& name : kNames) row[name] = "";
  row["trace"] = path;
  row["layer"] = std::to_string(layer);
  row["step"] = std::to_string(t);
  row["head"] = std::to_string(h);
  row["perturbation"] = shortest(figures(first + 1)(t, h));
  row["relative"] = shortest(figures(first + 2)(t, h));
  row["kept_mass"] = shortest(figures(first + 3)(t, h));
  return row;
}

void evicts(Row& row, double first, int64_t t, int64_t h) {
  row["label"] = "h2o";
  row["policy"] = canonical(parse_policy("h2o"));
  row["budget"] = "20%";
  row["entries"] = "12";
  row["backend"] = "reference";
  if (row["head"] == "all") return;
  row["bound"] = shortest(figures(2 * (first + 1))(t, h));
  row["tightness"] = shortest(figures(first + 1)(t, h) / figures(2 * (first + 1))(t, h));
  row["stage_one_mass"] = shortest(figures(first + 8)(t, h));
  row["stage_one_low"] = "0";
  row["violations"] = "0";
}

void merges(Row& row, double first, int64_t t, int64_t h) {
  row["label"] = "mine";
  row["policy"] = canonical(parse_policy("h2o+keepkv"));
  row["budget"] = "9";
  row["entries"] = "9";
  row["backend"] = "emulated";
  if (row["head"] == "all") return;
  row["merge_perturbation"] = shortest(figures(first + 9)(t, h));
  double next = first + 10;
  for (const char* name : {"later_perturbation", "prediction_error", "value_distance", "later_bound",
                           "later_shared_bound", "later_joint_bound", "later_variation_bound", "sag"}) {
    row[name] = shortest(figures(next++)(t, h));
  }
}

// All rows expected in a report, in order.
std::vector<Row> expected_rows(const std::string& path) {
  std::vector<Row> rows, of_layers;
  for (const double first : {100.0, 200.0, 300.0, 400.0}) {
    const int64_t layer = first == 100 || first == 300 ? 3 : 7;
    const auto finish = first < 300 ? evicts : merges;
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        rows.push_back(row_of(first, path, layer, t, h));
        finish(rows.back(), first, t, h);
      }
      Row all = row_of(first, path, layer, t, 0);
      all["head"] = "all";
      for (const char* name : {"perturbation", "relative", "kept_mass"}) all[name] = "";
      all["layer_perturbation"] = shortest(first + 4 + static_cast<double>(t));
      all["layer_relative"] = shortest(first + 6 + static_cast<double>(t));
      finish(all, first, t, 0);
      of_layers.push_back(all);
    }
  }
  rows.insert(rows.end(), of_layers.begin(), of_layers.end());
  return rows;
}

TEST(ReplayCubes, HasInEveryColumnTheFigureOfItsRunLayerStepAndHead) {
  const std::string first = "a, \"b\".safetensors", second = "c.safetensors";
  const Table table(csv_of(report_of(first)) +
                    csv_rows(replay_part(report_of(second), std::nullopt, ReplayDetail::rows)));
  EXPECT_EQ(table.names, kNames);
  std::vector<Row> expected = expected_rows(first);
  for (const Row& row : expected_rows(second)) expected.push_back(row);
  ASSERT_EQ(table.rows.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const std::string& name : kNames) {
      EXPECT_EQ(table.rows[i].at(name), expected[i].at(name)) << name << " of row " << i;
    }
  }
}

TEST(ReplayCubes, SaysWhereABoundIsViolatedByMoreThanRounding) {
  ReplayReport report = report_of("a");
  LayerMetrics& metrics = report.result.runs[0].layers[0];
  metrics.perturbation = test::matrix({{1, 2}, {2, kNan}});
  metrics.bound = test::matrix({{1, 1}, {1, 1}});
  metrics.rounding = test::matrix({{0, 0.5}, {1, 1}});
  report.result.runs.resize(1);
  report.result.runs[0].layers.resize(1);
  report.result.scope.layers = {3};
  EXPECT_EQ(column(csv_of(report), "violations"), (std::vector<std::string>{"0", "1", "0", "1"}));
}

TEST(ReplayCubes, LeavesUndefinedRatiosAndBoundsThatBoundNothingEmpty) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  ReplayReport report = report_of("a");
  LayerMetrics& evicting = report.result.runs[0].layers[0];
  evicting.perturbation = test::matrix({{0, 1}, {1, 3}});
  evicting.bound = test::matrix({{0, 0}, {2, 2}});
  evicting.relative = test::matrix({{kNan, 0}, {1, kNan}});
  EXPECT_EQ(Table(csv_of(report)).rows[0].at("tightness"), "0");
  EXPECT_EQ(Table(csv_of(report)).rows[1].at("tightness"), "") << "1/0";
  EXPECT_EQ(Table(csv_of(report)).rows[3].at("tightness"), "1.5");
  EXPECT_EQ(Table(csv_of(report)).rows[0].at("relative"), "");
  LaterQueries& later = *report.result.runs[1].layers[0].merges->later;
  later.bound(0, 0) = kInfinite;
  later.sag(0, 0) = kNan;
  const Row row = Table(csv_of(report)).rows[8];
  EXPECT_EQ(row.at("later_bound"), "");
  EXPECT_EQ(row.at("sag"), "");
  EXPECT_EQ(row.at("later_shared_bound"), "314");
}

}  // namespace
}  // namespace kvbound::sim::replay_cubes_test
