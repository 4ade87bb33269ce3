#include <cmath>

#include "number.hpp"
#include "policy.hpp"
#include "report.hpp"

namespace kvbound::sim {
namespace {

// An undefined ratio is an empty field.
std::string number_field(double number) { return std::isnan(number) ? "" : shortest(number); }

void append_layer(std::string& csv, const std::string& run, int64_t layer, const LayerMetrics& metrics) {
  for (int64_t t = 0; t < metrics.perturbation.rows(); ++t) {
    const std::string start = run + std::to_string(layer) + "," + std::to_string(t) + ",";
    for (int64_t h = 0; h < metrics.perturbation.cols(); ++h) {
      csv += start + std::to_string(h) + "," + number_field(metrics.perturbation(t, h)) + "," +
             number_field(metrics.relative(t, h)) + "," + number_field(metrics.bound(t, h)) + "," +
             number_field(ratio(metrics.perturbation(t, h), metrics.bound(t, h))) + "," +
             number_field(metrics.kept_mass(t, h)) + "," +
             (metrics.stage_one_mass ? number_field((*metrics.stage_one_mass)(t, h)) : "") + "," +
             (metrics.violates(t, h) ? "1" : "0") + "\n";
    }
    const auto step = static_cast<size_t>(t);
    csv += start + "all," + number_field(metrics.layer_perturbation[step]) + "," +
           number_field(metrics.layer_relative[step]) + ",,,,,\n";
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

std::string csv_report(const std::vector<Report>& reports) {
  std::string csv =
      "trace,policy,budget,entries,backend,layer,step,head,perturbation,relative,bound,tightness,kept_mass,"
      "stage_one_mass,violation\n";
  for (const auto& [result, sha256] : reports) {
    for (const RunResult& run : result.runs) {
      const std::string start = quoted_field(result.trace.path) + "," + canonical(run.run.policy.policy) +
                                "," + to_string(run.run.budget) + "," + std::to_string(run.entries) + "," +
                                run.run.backend + ",";
      for (size_t l = 0; l < run.layers.size(); ++l) {
        append_layer(csv, start, result.scope.layers[l], run.layers[l]);
      }
    }
  }
  return csv;
}

}  // namespace kvbound::sim
