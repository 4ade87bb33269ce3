#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "report.hpp"

namespace kvbound::sim {
namespace {

// An undefined ratio is an empty field.
std::string number_field(double number) { return std::isnan(number) ? "" : shortest(number); }

std::string optional_field(const std::optional<Matrix>& figures, int64_t step, int64_t head) {
  return figures ? number_field((*figures)(step, head)) : "";
}

// The largest change that a merge made to the output of the query that built it, by step and query head.
using MergeChanges = std::map<std::pair<int64_t, int64_t>, double>;

MergeChanges largest_changes(const std::optional<MergeMetrics>& merges) {
  MergeChanges largest;
  if (!merges) return largest;
  for (const MergeChange& change : merges->changes) {
    double& most = largest.try_emplace({change.step, change.query_head}, 0).first->second;
    most = larger(most, change.perturbation);
  }
  return largest;
}

// The field is empty where nothing merged. A change may be NaN; NaN is then written, because it is not a ratio.
std::string merge_field(const MergeChanges& changes, int64_t step, int64_t head) {
  const auto found = changes.find({step, head});
  return found == changes.end() ? "" : shortest(found->second);
}

// The fields Theta, epsilon, gamma, the three bounds and the sag. An infinite bound is an empty field, too.
std::string later_fields(const std::optional<MergeMetrics>& merges, int64_t step, int64_t head) {
  if (!merges || !merges->later) return ",,,,,,";
  const LaterQueries& later = *merges->later;
  std::string fields;
  for (const Matrix* figures : {&later.perturbation, &later.prediction_error, &later.value_distance,
                                &later.bound, &later.shared_bound, &later.joint_bound, &later.sag}) {
    const double figure = (*figures)(step, head);
    if (figures != &later.perturbation) fields += ",";
    fields += std::isfinite(figure) ? shortest(figure) : "";
  }
  return fields;
}

void append_layer(std::string& csv, const std::string& run, int64_t layer, const LayerMetrics& metrics) {
  const MergeChanges changes = largest_changes(metrics.merges);
  for (int64_t t = 0; t < metrics.perturbation.rows(); ++t) {
    const std::string start = run + std::to_string(layer) + "," + std::to_string(t) + ",";
    for (int64_t h = 0; h < metrics.perturbation.cols(); ++h) {
      csv += start + std::to_string(h) + "," + number_field(metrics.perturbation(t, h)) + "," +
             number_field(metrics.relative(t, h)) + "," + optional_field(metrics.bound, t, h) + "," +
             (metrics.bound ? number_field(ratio(metrics.perturbation(t, h), (*metrics.bound)(t, h))) : "") +
             "," + number_field(metrics.kept_mass(t, h)) + "," +
             optional_field(metrics.stage_one_mass, t, h) + "," +
             (!metrics.bound           ? ""
              : metrics.violates(t, h) ? "1"
                                       : "0") +
             "," + merge_field(changes, t, h) + "," + later_fields(metrics.merges, t, h) + "\n";
    }
    const auto step = static_cast<size_t>(t);
    csv += start + "all," + number_field(metrics.layer_perturbation[step]) + "," +
           number_field(metrics.layer_relative[step]) + ",,,,,,,,,,,,,\n";
  }
}

}  // namespace

std::string quoted_field(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) {
    field += c;
    if (c == '"') field += c;
  }
  return field + "\"";
}

std::string csv_headings() {
  return "trace,policy,budget,entries,backend,layer,step,head,"
         "perturbation,relative,bound,tightness,kept_mass,stage_one_mass,violation,merge_perturbation,"
         "later_perturbation,prediction_error,value_distance,later_bound,later_shared_bound,later_joint_bound,sag\n";
}

std::string csv_rows(const Report& report) {
  const ReplayResult& result = report.result;
  std::string csv;
  for (const RunResult& run : result.runs) {
    const std::string start =
        quoted_field(result.trace.path) + "," + quoted_field(canonical(run.run.policy.policy)) + "," +
        to_string(run.run.budget) + "," + std::to_string(run.entries) + "," + run.run.backend + ",";
    for (size_t l = 0; l < run.layers.size(); ++l)
      append_layer(csv, start, result.scope.layers[l], run.layers[l]);
  }
  return csv;
}

}  // namespace kvbound::sim
