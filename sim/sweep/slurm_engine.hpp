// Worker processes on a cluster: a job array of Slurm, and a job behind it that gathers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sweep_folder.hpp"

namespace kvbound::sim {

struct SlurmOptions {
  int64_t jobs = 1;  ///< tasks of the array
  int64_t retries = 2;
  std::optional<int64_t> threads;  ///< of each task (--cpus-per-task); else what Slurm gives
  bool gpu = false;                ///< whether each task needs one (--gpus-per-task=1)
  std::string sbatch;  ///< further lines of #SBATCH options, such as "--partition=long --time=2:00:00"
  std::optional<std::string> json, csv;  ///< what the job behind the array is to write
};

/// Submits the array, whose tasks are requeued when their node fails. Scripts and logs are
/// in the folder's `slurm`.
///
/// hash     of the sweep in the folder
/// returns  the array's job id
/// throws   IoError if sbatch fails, with what it says; UsageError for paths and
///          options with control characters
std::string submit_array(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options);

/// Submits the job that writes options.json and options.csv when all tasks of an array
/// have ended. Throws likewise.
void submit_gathering(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options,
                      const std::string& array);

/// Whether a job has tasks that wait or run, or the controller does not answer.
bool is_alive(const SweepFolder& folder, const std::string& job);

/// The script of the array, for people and tests. Throws UsageError likewise.
std::string array_script(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options);

}  // namespace kvbound::sim
