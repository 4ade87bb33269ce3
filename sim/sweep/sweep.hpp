// A sweep: a plan whose traces were found, checked and hashed. Everything that workers, and
// gathering, need to know.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/report/environment.hpp>

#include "plan.hpp"

namespace kvbound::sim {

/// A trace as it was when the sweep was planned.
struct SweepTrace {
  std::string file;         ///< absolute path
  std::string sha256;       ///< Trace::sha256
  std::string fingerprint;  ///< sizes and times of change of its files, by the file system's clock
  traces::TraceInfo info;
  Scope scope;       ///< what is replayed of it
  GivenFacts given;  ///< its files of runs whose host is `given`
};

struct Sweep {
  Computation computation;  ///< of the program that planned it
  std::vector<SweepTrace> traces;
  std::vector<Run> runs;  ///< every_run
  std::optional<Policy> base;
  int64_t layers_per_item = 1;
  int64_t policies_per_item = 1;
  traces::Trace::Options options;
  /// The files of heads' importances, by the paths by which policies name them
  std::map<std::string, std::shared_ptr<const HeadScores>> head_scores = {};
};

/// The traces that a plan's patterns match, in the order of the plan and, of one pattern, of their names.
///
/// options   with which traces are opened, by workers, too
/// earlier   a sweep whose hashes are taken over for files that have not changed since; may be null
/// progress  called with the bytes hashed and the whole
/// throws    TraceError for a pattern that nothing matches, a file matched twice and a file that is no trace;
///           InvalidPolicy for runs that are not valid for a trace; NoDevice; IoError
Sweep resolve(const SweepPlan& plan, const Sweep* earlier, const traces::Trace::Options& options,
              const std::function<void(int64_t, int64_t)>& progress);

/// Opens a trace of a sweep. Throws TraceError if it has changed since the sweep was planned; as Trace.
traces::Trace open_trace(const Sweep& sweep, const SweepTrace& trace);

/// The traces of a sweep, of which the one that was wanted last stays open: a header with many layers takes
/// longer to read than a small item takes to compute, and items of one trace follow each other.
class OpenTraces {
 public:
  /// sweep  outlives the object
  explicit OpenTraces(const Sweep& sweep) : sweep_(sweep) {}

  const Sweep& sweep() const { return sweep_; }
  /// By its index in the sweep; good until the next call. Throws as open_trace, also for a
  /// trace that has changed since.
  const traces::Trace& of(size_t trace);
  /// The files of runs whose host is `given`, of the trace that `of` returned last.
  const GivenFiles& given() const { return given_; }
  /// Closes what is open, so that another try does not read from a file that failed.
  void close() { open_.reset(); }

 private:
  const Sweep& sweep_;
  std::optional<traces::Trace> open_;
  GivenFiles given_;
  size_t index_ = 0;  // of the open one
};

/// The sweep as text, and from it. Throws TraceError, naming the path, for a text that
/// `text_of` did not write.
std::string text_of(const Sweep& sweep);
Sweep parse_sweep(const std::string& path, const std::string& text);

}  // namespace kvbound::sim
