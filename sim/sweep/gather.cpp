#include "gather.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "damage.hpp"

namespace kvbound::sim {
namespace {

// Adds a run's part of some successive layers to the run.
void append(RunResult& run, RunPart part) {
  run.compress_seconds += part.compress_seconds;
  run.step_seconds += part.step_seconds;
  std::ranges::move(part.layers, std::back_inserter(run.layers));
  if (!part.agreement) return;
  if (!run.agreement) run.agreement.emplace();
  std::ranges::move(*part.agreement, std::back_inserter(*run.agreement));
}

void append(std::vector<BackendTimes>& times, const std::vector<BackendTimes>& more) {
  for (const BackendTimes& backend : more) {
    const auto found = std::ranges::find(times, backend.backend, &BackendTimes::backend);
    if (found != times.end()) found->operations.add(backend.operations);
  }
}

}  // namespace

Gathering::Gathering(const SweepFolder& folder, const Sweep& sweep, bool mixed)
    : folder_(folder), sweep_(sweep), mixed_(mixed), keys_(sweep), index_(folder, sweep) {
  for (SweepItem& item : items_of(sweep)) {
    const ItemKey key = keys_.of(item);
    std::vector<size_t> rest = runs_without(item, index_.sources_of(item, key, mixed));
    if (rest.empty()) continue;
    incomplete_.insert(item.trace);
    if (rest.size() < item.runs->size())
      item.runs = std::make_shared<const std::vector<size_t>>(std::move(rest));
    const ItemKey rest_key = keys_.of(item);
    const bool other_computation =
        !mixed && runs_without(item, index_.sources_of(item, rest_key, true)).empty();
    std::vector<Attempt> failed = folder.attempts(rest_key.file());
    std::erase_if(failed, [](const Attempt& attempt) { return !attempt.problem; });
    missing_.push_back({item, std::move(failed), other_computation});
  }
}

ReplayReport Gathering::trace(size_t trace) {
  const SweepTrace& planned = sweep_.traces[trace];
  ReplayReport report{empty_result(planned.info, sweep_.runs, planned.scope, planned.given), planned.sha256};
  for (const SweepItem& item : items_of(sweep_, trace)) {
    for (const ResultSource& source : index_.sources_of(item, keys_.of(item), mixed_))
      take(item, source, report.result);
  }
  return report;
}

void Gathering::take(const SweepItem& item, const ResultSource& source, ReplayResult& result) {
  ItemResult found = folder_.result(source.file);
  require_result_of(folder_.result_path(source.file), found, sweep_, item, source.runs);
  for (const size_t r : source.runs)
    append(result.runs[r],
           std::move(*std::ranges::find(found.runs, key_of(sweep_.runs[r], sweep_.traces[item.trace]),
                                        &RunPart::key)));
  append(result.times, found.times);
  if (std::ranges::find(environments_, found.environment) == environments_.end())
    environments_.push_back(std::move(found.environment));
}

Environment Gathering::environment() const {
  if (environments_.empty()) return sim::environment();
  Environment together = environments_.front();
  for (std::string Environment::*const text :
       {&Environment::version, &Environment::revision, &Environment::compiler, &Environment::device}) {
    std::set<std::string> texts;
    for (const Environment& one : environments_) texts.insert(one.*text);
    together.*text = fmt::format("{}", fmt::join(texts, "; "));
  }
  for (const Environment& one : environments_) together.threads = std::max(together.threads, one.threads);
  return together;
}

}  // namespace kvbound::sim
