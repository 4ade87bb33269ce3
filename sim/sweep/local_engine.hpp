// Worker processes on this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "worker.hpp"

namespace kvbound::sim {

/// The part of a sweep's work that this machine begins with: share `index` of `count`.
struct Share {
  int64_t index = 0, count = 1;
};

struct LocalOptions {
  int64_t jobs = 1;  ///< processes
  Share share;
  int64_t retries = 2;
  int64_t threads = 0;  ///< of each process; 0: the processors divided by the processes
};

struct LocalOutcome {
  int64_t done = 0;                                      ///< items that were computed here
  std::map<std::string, std::vector<Attempt>> given_up;  ///< by file
  int exit_code = 0;                                     ///< of a worker that could not go on; 0 if none
};

/// Exit code of a worker that another process is to replace: its GPU failed.
inline constexpr int kReplaceWorker = 75;

/// Starts workers (this program, as `sweep --worker`), starts others where workers were killed, and returns
/// when they end. With several GPUs and no CUDA_VISIBLE_DEVICES, worker i is given GPU i modulo their number.
///
/// hash    of the sweep in the folder
/// report  called for every item that is done, with its number and seconds
LocalOutcome run_locally(const SweepFolder& folder, const std::string& hash, const LocalOptions& options,
                         const std::function<void(int64_t, double)>& report);

/// What a worker says of an item.
struct WorkerLine {
  int64_t item = 0;
  std::string file;
  double seconds = 0;
  std::vector<std::string> given_up;  ///< the problem of each try; empty: the item has results
};

/// What a worker writes to its engine, a line an item.
std::string line_of(const ItemReport& report);
/// What line_of wrote, without the line's end; none for another line, such as one of a
/// library that the worker uses.
std::optional<WorkerLine> worker_line_of(const std::string& line);

}  // namespace kvbound::sim
