#include "worker.hpp"

#include <unistd.h>
#include <algorithm>
#include <iterator>
#include <map>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/sim/report/environment.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kMostMachines = 3;  // that give an item up before all do

// Throws TraceError unless this program and machine compute the numbers that the sweep's do.
void require_same_computation(const SweepFolder& folder, const Sweep& sweep) {
  std::vector<std::string> backends;
  for (const Run& run : sweep.runs) backends.push_back(run.backend);
  const FieldsJson own = fields_of(computation(backends)), planned = fields_of(sweep.computation);
  for (const auto& [name, value] : own.items()) {
    if (planned.at(name) == value) continue;
    throw TraceError(
        folder.path(), -1, name,
        fmt::format("is {} here and {} in the sweep: numbers would differ; see the README of sim/sweep",
                    value.dump(), planned.at(name).dump()));
  }
}

// In whose scope an allocation that fails throws std::bad_alloc, also in a program that it would end.
class Throwing {
 public:
  Throwing() : handler_(std::set_new_handler(nullptr)) {}
  ~Throwing() { std::set_new_handler(handler_); }
  Throwing(const Throwing&) = delete;
  Throwing& operator=(const Throwing&) = delete;

 private:
  std::new_handler handler_;
};

class Worker {
 public:
  Worker(const SweepFolder& folder, const Sweep& sweep, const WorkerOptions& options,
         const std::function<void(const ItemReport&)>& report)
      : folder_(folder), options_(options), report_(report), traces_(sweep) {}

  // Tries every item without results once. Returns those that failed and may be tried again here.
  std::vector<const PlannedItem*> pass(const std::vector<const PlannedItem*>& items) {
    std::vector<const PlannedItem*> failed;
    for (const PlannedItem* item : items) {
      if (!folder_.has(item->file) && !attempt(*item)) failed.push_back(item);
    }
    return failed;
  }

 private:
  // Whether nothing is left to do for the item here: it has results, another process
  // computes it, or it is given up.
  bool attempt(const PlannedItem& planned) {
    const auto claim = folder_.claim(planned.file);
    if (!claim || folder_.has(planned.file)) return true;
    std::vector<Attempt> attempts = folder_.attempts(planned.file);
    if (!attempts.empty() && !attempts.back().problem) {
      attempts.back().problem = "its process was killed";
      folder_.remove_unfinished(planned.file);
    }
    if (!may_try(attempts)) {
      folder_.keep_attempts(planned.file, attempts);
      report_({&planned, 0, attempts});
      return true;
    }
    attempts.push_back({host_name(), getpid(), std::nullopt});
    folder_.keep_attempts(planned.file, attempts);
    return try_once(planned, attempts);
  }

  // A machine has its own number of tries, so that one on which nothing works leaves items to
  // others; but not to all of them.
  bool may_try(const std::vector<Attempt>& attempts) const {
    std::map<std::string, int64_t> tries;
    for (const Attempt& attempt : attempts) ++tries[attempt.host];
    const auto gave_up =
        std::ranges::count_if(tries, [&](const auto& host) { return host.second > options_.retries; });
    return tries[host_name()] <= options_.retries && gave_up < kMostMachines;
  }

  // Whether the item has results now; if not, the last attempt says why.
  bool try_once(const PlannedItem& planned, std::vector<Attempt>& attempts) {
    std::optional<ItemResult> result;
    try {
      const Throwing allocations;  // an item too large for this machine leaves it to work on others
      result = compute(traces_, planned.item);
    } catch (const DeviceError& error) {  // which may spoil the process for every later item
      attempts.back().problem = error.what();
      folder_.keep_attempts(planned.file, attempts);
      throw;
    } catch (const std::bad_alloc&) {
      attempts.back().problem = "out of memory";
    } catch (const std::exception& error) {
      attempts.back().problem = error.what();
    }
    if (!result) {
      traces_.close();
      folder_.keep_attempts(planned.file, attempts);
      return false;
    }
    try {
      folder_.keep_result(planned.file, *result);
    } catch (const TraceError& error) {  // of results that nobody could read again
      attempts.back().problem = error.what();
      folder_.keep_attempts(planned.file, attempts);
      return false;
    } catch (const IoError&) {  // not the item's fault
      attempts.pop_back();
      folder_.keep_attempts(planned.file, attempts);
      throw;
    }
    folder_.forget_attempts(planned.file);
    report_({&planned, result->seconds, {}});
    return true;
  }

  const SweepFolder& folder_;
  const WorkerOptions& options_;
  const std::function<void(const ItemReport&)>& report_;
  OpenTraces traces_;
};

}  // namespace

ItemResult compute(const Sweep& sweep, const SweepItem& item) {
  OpenTraces traces(sweep);
  return compute(traces, item);
}

ItemResult compute(OpenTraces& traces, const SweepItem& item) {
  const Sweep& sweep = traces.sweep();
  const Clock::time_point start = Clock::now();
  const SweepTrace& planned = sweep.traces[item.trace];
  Scope scope = planned.scope;
  scope.budgeted = planned.scope.layers;
  scope.layers = item.layers;
  std::vector<Run> runs;
  for (const size_t r : *item.runs) runs.push_back(sweep.runs[r]);
  const traces::Trace& trace = traces.of(item.trace);
  ReplayResult replayed = replay(trace, runs, scope, {}, {}, traces.given());
  ItemResult result;
  result.computation = sweep.computation;
  result.environment = environment();
  result.host = host_name();
  result.layers = item.layers;
  for (RunResult& run : replayed.runs) {
    result.runs.push_back({key_of(run.run, planned), run.compress_seconds, run.step_seconds,
                           std::move(run.layers), std::move(run.agreement)});
  }
  result.times = std::move(replayed.times);
  result.seconds = seconds_since(start);
  return result;
}

void work(const SweepFolder& folder, const Sweep& sweep, const std::vector<PlannedItem>& items,
          const WorkerOptions& options, const std::function<void(const ItemReport&)>& report) {
  require_same_computation(folder, sweep);
  std::vector<const PlannedItem*> own, others;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].done) continue;
    const bool is_own = static_cast<int64_t>(i) % options.count == options.index;
    (is_own ? own : others).push_back(&items[i]);
  }
  Worker worker(folder, sweep, options, report);
  std::vector<const PlannedItem*> failed = worker.pass(own);
  const auto results = folder.results();
  std::erase_if(others, [&](const PlannedItem* item) { return results.contains(item->file); });
  // Each worker begins elsewhere, so that they do not all look for the same items.
  if (!others.empty()) {
    const auto first = std::ssize(others) * options.index / options.count;
    std::rotate(others.begin(), others.begin() + first, others.end());
  }
  std::ranges::copy(worker.pass(others), std::back_inserter(failed));
  while (!failed.empty()) failed = worker.pass(failed);
}

}  // namespace kvbound::sim
