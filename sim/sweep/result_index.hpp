// Which results of a sweep's folder hold which runs of an item.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sweep_folder.hpp"

namespace kvbound::sim {

/// A file of results, and the runs of the sweep that are to be taken from it.
struct ResultSource {
  std::string file;
  std::vector<size_t> runs;
};

/// The results that a folder had when the object was made.
class ResultIndex {
 public:
  /// folder, sweep  outlive the object
  ResultIndex(const SweepFolder& folder, const Sweep& sweep);

  bool has(const std::string& file) const { return files_.contains(file); }

  /// Where an item's runs have results: in its own file, or in those of sweeps of other policies and budgets
  /// of the same content. Runs without results are in none. A run with several results, which are equal but
  /// for times, is taken from one.
  ///
  /// mixed  also results of other computations (Sweep::computation), for runs that
  ///        have none of the sweep's own
  std::vector<ResultSource> sources_of(const SweepItem& item, const ItemKey& key, bool mixed);

 private:
  const std::vector<std::string>& files_of(const std::string& content);
  const std::unordered_set<std::string>& runs_in(const std::string& file);
  std::string run_key(size_t run, size_t trace) const;

  const SweepFolder& folder_;
  const Sweep& sweep_;
  std::vector<std::string> run_keys_;  // [runs]; empty: it depends on the trace
  std::unordered_set<std::string> files_;
  std::unordered_map<std::string, std::unordered_set<std::string>>
      runs_;  // keys of runs, by that part of files' names
  bool has_contents_ = false;
  std::unordered_map<std::string, std::vector<std::string>>
      contents_;  // files by content key; made when it is first needed
};

/// The files that hold results of a sweep's own computation, each once, with the trace that they are of.
struct FinishedFile {
  size_t trace = 0;
  std::string file;
};
std::vector<FinishedFile> finished_files(const SweepFolder& folder, const Sweep& sweep);

/// An item's runs that are in none of the sources.
std::vector<size_t> runs_without(const SweepItem& item, const std::vector<ResultSource>& sources);

}  // namespace kvbound::sim
