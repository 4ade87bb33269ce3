// Measures the speed of operations relative to rooflines that are measured in the same run.
//
// In every round each work item is timed once: the operation, then whatever it is measured against. All of
// them are exposed to the same noise of the machine, and a ratio is taken per round. A pause before each
// timing lets spinning threads of OpenMP or OpenBLAS release the processors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/sim/roofline/gpu.hpp>

#include "prediction.hpp"

namespace kvbound::sim {

/// The layer whose operations are measured.
struct BenchShape {
  std::string name;  ///< as on the command line, without the tokens
  LayerShape layer;
  int64_t tokens = 0;
  int64_t cube = 0;  ///< side of the matrices whose product is DGEMM's roofline

  friend bool operator==(const BenchShape&, const BenchShape&) = default;
};

/// Reads "llama-3.1-8b:8192": a known layer, and optionally its tokens. Throws UsageError
/// listing the known shapes.
BenchShape parse_bench_shape(std::string_view text);

/// The unit of work of steps of several layers and requests, each of them a layer of a request.
constexpr const char* kLayerSteps = "layer steps";

/// Median, smallest and largest of at least one number.
struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};
Spread spread(std::vector<double> numbers);

/// A work item to be timed.
struct BenchPiece {
  std::string name;
  double work = 0;   ///< amount of work per run, in `unit`
  std::string unit;  ///< FLOP, bytes, exponentials, scores, norms, steps, layers, layer steps
  std::function<void()> run;
  /// Runs the item and returns its time by a clock of its own; null: `run` is timed by wall-clock time.
  std::function<double()> seconds = nullptr;
  std::optional<double> bytes = std::nullopt;  ///< bytes moved through memory, if `unit` is not bytes
};

struct BenchTimes {
  std::string name;
  double work = 0;
  std::string unit;
  std::optional<double> bytes;
  std::vector<double> seconds;  ///< one per round
};

/// An operation's rates on a device, as shares of the device's copy bandwidth and matrix-product rate.
struct BenchShares {
  std::vector<double> copy_bandwidth;  ///< one per round
  std::vector<double> matrix_rate;     ///< likewise; empty for an operation without FLOP
};

/// A bound that a ratio should meet: at_least(0.8), at_most(1.25).
struct BenchGoal {
  double value = 0;
  bool is_least = false;  ///< whether `value` is a lower bound; otherwise an upper bound

  bool is_met(double ratio) const { return is_least ? ratio >= value : ratio <= value; }
};
constexpr BenchGoal at_least(double value) { return {value, true}; }
constexpr BenchGoal at_most(double value) { return {value, false}; }

struct BenchResult {
  std::string operation;
  std::vector<BenchTimes> times;  ///< of the operation, then of the work that it is measured against
  bool warm_up = false;           ///< whether an uncounted round came first
  std::string ratio_meaning;
  std::vector<double> ratios;  ///< one per round; empty if there is none
  std::string no_ratio;        ///< why there is no ratio; empty otherwise
  std::optional<BenchGoal> goal;
  std::optional<BenchShares> shares;  ///< on a device; the rooflines are then all of `times` but the first
  std::string label = {};   ///< the policy as it was named; of an operation that is run by one; else empty
  std::string policy = {};  ///< likewise, canonical
  std::optional<cuda::DeviceCounters> requests = {};  ///< of the device, by one run or by 16 steps together
  std::optional<Prediction> prediction = {};          ///< instead of times, if a model of a GPU was asked for

  /// Whether the median ratio meets the goal; nullopt without ratio or goal.
  std::optional<bool> met() const;
  /// "met" or "missed", with "by the median" if not all rounds agree; empty where met() is nullopt.
  std::string verdict() const;
};

struct BenchRounds {
  std::optional<int64_t> asked;  ///< number of rounds, whatever the time; nullopt: as many as time allows
  double seconds = 60;           ///< no rounds beyond the minimum are started after this time
};

/// The number of rounds to measure.
struct BenchPlan {
  /// Whether the first round is a warm-up that is not counted. A long first round is counted, because warming
  /// up hardly matters to it.
  bool warm_up = false;
  int64_t least = 0;  ///< least number of counted rounds, whatever the time
  int64_t most = 0;

  friend bool operator==(const BenchPlan&, const BenchPlan&) = default;
};
/// The plan for a run whose first round took this many seconds.
BenchPlan plan(const BenchRounds& rounds, double first_round);

/// Times all pieces in every round.
///
/// ratio    computes a round's ratio from its times in seconds, in the order of the pieces; optional
BenchResult measure(const std::vector<BenchPiece>& pieces, const BenchRounds& rounds,
                    const std::function<double(std::span<const double> seconds)>& ratio = nullptr);

struct BenchOptions {
  BenchShape shape;
  BenchRounds rounds;
  uint64_t seed = 1;
  int threads = 1;
  std::string fastest_core = {};  ///< core whose DGEMM is the roofline; empty: the current one
  std::string policy = {};        ///< text of the policy that the operation is run by, if it is run by one
  int64_t layers = 1;             ///< whose decode steps are taken together
  int64_t requests =
      1;  ///< likewise, of each layer; the i-th has (requests + i) / (2 requests) of the tokens
  std::string model = {};  ///< checkpoint that the operation runs, if it runs one: a GGUF file or a folder
  int64_t prompt = 4096;   ///< tokens that it reads
  std::optional<Gpu> gpu =
      {};  ///< whose time is predicted from what the operation does; the emulated device only
  /// What every operation of a device is measured against, made by the first one: random matrices take long.
  std::shared_ptr<std::vector<BenchPiece>> ceilings = std::make_shared<std::vector<BenchPiece>>();
};

/// The number of threads that OpenBLAS uses if asked for this many; fewer if its build does not support them.
int blas_threads(int asked);

/// An operation that can be measured.
struct BenchOperation {
  std::string_view name;
  std::string_view description;
  BenchResult (*run)(const BenchOptions&);
  bool by_policy = false;  ///< whether it is run by a policy, options.policy
  bool by_model = false;   ///< whether it runs a checkpoint, options.model
};

/// The operations of a backend, in the order in which they are measured: the reference's on this processor,
/// or those of sim/bench/device_bench.hpp.
std::span<const BenchOperation> bench_operations(std::string_view backend);
std::span<const BenchOperation> reference_bench_operations();

}  // namespace kvbound::sim
