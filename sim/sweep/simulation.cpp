#include "simulation.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include <kvbound/reference/core/draw.hpp>
#include <kvbound/reference/core/parallel_times.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/traces/temporary_name.hpp>

#include "result_index.hpp"

namespace kvbound::sim {

namespace {

// A folder of a sweep beside another's files, which goes with the object and when a signal ends the program.
class ScratchFolder {
 public:
  explicit ScratchFolder(const SweepFolder& beside)
      : name_(traces::TemporaryName::beside((std::filesystem::path(beside.path()) / "overhead").string())),
        folder_(name_.path()) {
    hold(folder_.paths());
    folder_.make();
  }
  ~ScratchFolder() {
    while (!held_.empty()) held_.pop_back();  // what is in a folder before the folder
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // To be called before anything of an item is kept.
  const SweepFolder& ready_for(const std::string& file) {
    hold(folder_.paths_of(file));
    return folder_;
  }

 private:
  void hold(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (known_.insert(path).second) held_.emplace_back(path);
    }
  }

  traces::TemporaryName name_;
  SweepFolder folder_;
  std::set<std::string> known_;
  std::vector<traces::TemporaryName> held_;
};

}  // namespace

MeasuredItems measured_items(const SweepFolder& folder, const Sweep& sweep, int64_t copies) {
  MeasuredItems measured;
  ScratchFolder place(folder);
  double overhead = 0;
  int64_t copied = 0;
  for (const FinishedFile& finished : finished_files(folder, sweep)) {
    const ItemResult result = folder.result(finished.file);
    measured.seconds.push_back(result.seconds);
    if (copied == copies) continue;
    const SweepFolder& scratch = place.ready_for(finished.file);
    const Clock::time_point start = Clock::now();
    const auto claim = scratch.claim(finished.file);
    scratch.keep_attempts(finished.file, {{host_name(), 1, std::nullopt}});
    scratch.keep_result(finished.file, result);
    scratch.forget_attempts(finished.file);
    overhead += seconds_since(start);
    ++copied;
  }
  if (copied > 0) measured.overhead = overhead / static_cast<double>(copied);
  return measured;
}

std::vector<Makespan> simulate(const MeasuredItems& measured, int64_t items,
                               const std::vector<int64_t>& workers, int64_t seed) {
  std::vector<double> costs;
  double sum = 0;
  for (int64_t i = 0; i < items; ++i) {
    const uint64_t drawn = draw(seed, i) % measured.seconds.size();
    costs.push_back(measured.seconds[drawn] + measured.overhead);
    sum += costs.back();
  }
  std::vector<Makespan> found;
  for (const int64_t count : workers) {
    const double largest = std::ranges::max(costs);
    found.push_back({count, makespan(costs, count), std::max(sum / static_cast<double>(count), largest)});
  }
  return found;
}

double makespan(std::vector<double> costs, int64_t workers) {
  std::ranges::sort(costs, std::ranges::greater());
  return reference::makespan(costs, 0, workers);
}

}  // namespace kvbound::sim
