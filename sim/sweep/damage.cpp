#include "damage.hpp"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>

#include "result_index.hpp"

namespace kvbound::sim {
namespace {

// What a result has to be like, field by field.
class Requirements {
 public:
  Requirements(const std::string& path, const SweepTrace& trace)
      : path_(path), shape_(trace.info.shape), steps_(trace.scope.steps) {}

  void require(bool holds, const std::string& field, const std::string& problem) const {
    if (!holds) throw TraceError(path_, -1, field, problem);
  }
  void metrics(const std::string& field, const LayerMetrics& metrics) const;
  void agreement(const std::string& field, const TensorAgreement& agreement) const;

 private:
  void of_heads(const std::string& field, const Matrix& figures) const {
    const bool fits = figures.rows() == steps_ && (steps_ == 0 || figures.cols() == shape_.query_heads);
    require(fits, field,
            fmt::format("has {} steps of {} query heads; expected {} of {}", figures.rows(), figures.cols(),
                        steps_, shape_.query_heads));
  }
  void of_heads(const std::string& field, const std::optional<Matrix>& figures) const {
    if (figures) of_heads(field, *figures);
  }
  template <class Number>
  void length(const std::string& field, const std::vector<Number>& list, int64_t expected) const {
    require(std::ssize(list) == expected, field,
            fmt::format("has {} numbers; expected {}", list.size(), expected));
  }

  const std::string& path_;
  const LayerShape& shape_;
  int64_t steps_;
};

void Requirements::metrics(const std::string& field, const LayerMetrics& metrics) const {
  length(field + ".kept", metrics.kept, shape_.kv_heads);
  of_heads(field + ".perturbation", metrics.perturbation);
  of_heads(field + ".relative", metrics.relative);
  of_heads(field + ".bound", metrics.bound);
  of_heads(field + ".rounding", metrics.rounding);
  require(!metrics.bound || metrics.rounding, field + ".rounding", "is missing beside a bound");
  of_heads(field + ".centred_bound", metrics.centred_bound);
  of_heads(field + ".centred_rounding", metrics.centred_rounding);
  require(!metrics.centred_bound || metrics.centred_rounding, field + ".centred_rounding",
          "is missing beside a bound");
  of_heads(field + ".kept_mass", metrics.kept_mass);
  of_heads(field + ".stage_one_mass", metrics.stage_one_mass);
  length(field + ".layer_perturbation", metrics.layer_perturbation, steps_);
  length(field + ".layer_relative", metrics.layer_relative, steps_);
  if (!metrics.recall.empty()) length(field + ".recall", metrics.recall, shape_.kv_heads);
  if (!metrics.merges || !metrics.merges->later) return;
  const LaterQueries& later = *metrics.merges->later;
  for (const auto& [name, figures] : {std::pair{"perturbation", &later.perturbation},
                                      {"prediction_error", &later.prediction_error},
                                      {"value_distance", &later.value_distance},
                                      {"share", &later.share},
                                      {"sag", &later.sag},
                                      {"bound", &later.bound},
                                      {"shared_bound", &later.shared_bound},
                                      {"joint_bound", &later.joint_bound},
                                      {"variation_bound", &later.variation_bound}})
    of_heads(fmt::format("{}.merges.later.{}", field, name), *figures);
}

void Requirements::agreement(const std::string& field, const TensorAgreement& agreement) const {
  require(agreement.agrees() || agreement.worst, field + ".worst", "is missing, though elements differ");
}

// Throws Error unless a source is a result of its item.
void require_result(const SweepFolder& folder, const Sweep& sweep, const SweepItem& item,
                    const ResultSource& source) {
  require_result_of(folder.result_path(source.file), folder.result(source.file), sweep, item, source.runs);
}

// Why a source is no result of its item; none if it is one.
std::optional<std::string> problem_of(const SweepFolder& folder, const Sweep& sweep, const SweepItem& item,
                                      const ResultSource& source) {
  try {
    require_result(folder, sweep, item, source);
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

void make_missing(SweepFolder& folder, const Sweep& sweep, const SweepItem& item, const ResultSource& source,
                  bool remove) {
  if (!remove) {
    folder.disregard(source.file);
    return;
  }
  const auto claim = folder.claim(source.file);  // none: somebody computes the item now
  if (claim && problem_of(folder, sweep, item, source)) folder.remove_result(source.file);
}

}  // namespace

std::vector<std::string> find_damaged(SweepFolder& folder, const Sweep& sweep, const DamageOptions& options) {
  std::vector<std::string> problems;
  std::unordered_set<std::string> damaged, shared;  // shared: sound ones of several items
  ItemKeys keys(sweep);
  size_t before = 0;
  do {  // again where other results may stand in for damaged ones
    before = damaged.size();
    ResultIndex index(folder, sweep);
    for (const SweepItem& item : items_of(sweep)) {
      const ItemKey key = keys.of(item);
      for (const ResultSource& source : index.sources_of(item, key, options.mixed)) {
        if (shared.contains(source.file) || damaged.contains(source.file)) continue;
        if (auto problem = problem_of(folder, sweep, item, source)) {
          if (options.refuse_undamaged && folder.is_undamaged(source.file))
            require_result(folder, sweep, item, source);
          make_missing(folder, sweep, item, source, options.remove);
          damaged.insert(source.file);
          problems.push_back(*std::move(problem));
        } else if (source.file != key.file()) {
          shared.insert(source.file);
        }
      }
    }
  } while (damaged.size() > before);
  return problems;
}

void require_result_of(const std::string& path, const ItemResult& result, const Sweep& sweep,
                       const SweepItem& item, const std::vector<size_t>& runs) {
  const Requirements requirements(path, sweep.traces[item.trace]);
  requirements.require(result.layers == item.layers, "layers", "are others than the file's name says");
  for (const size_t r : runs) {
    const std::string key = key_of(sweep.runs[r], sweep.traces[item.trace]);
    const auto part = std::ranges::find(result.runs, key, &RunPart::key);
    requirements.require(part != result.runs.end(), "runs",
                         "lack " + key + ", which the file's name promises");
    const std::string field = fmt::format("runs[{}].", part - result.runs.begin());
    requirements.require(part->layers.size() == item.layers.size(), field + "layers",
                         fmt::format("are {}; expected {}", part->layers.size(), item.layers.size()));
    for (size_t l = 0; l < part->layers.size(); ++l)
      requirements.metrics(fmt::format("{}layers[{}]", field, l), part->layers[l]);
    if (!part->agreement) continue;
    for (size_t i = 0; i < part->agreement->size(); ++i)
      requirements.agreement(fmt::format("{}agreement[{}]", field, i), (*part->agreement)[i].agreement);
  }
}

}  // namespace kvbound::sim
