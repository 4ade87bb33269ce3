// How fast an operation is, against rooflines that are measured in the same run.
//
// Rounds: in each, every piece of work is timed once, the operation and what it is measured against in turn,
// so that all see the same noise of the machine; a ratio is taken per round. A pause before each lets threads
// that wait for work, OpenMP's or OpenBLAS', give up the processors.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

/// The layer whose operations are measured.
struct BenchShape {
  std::string name;  ///< as it is asked for, without the tokens
  LayerShape layer;
  int64_t tokens = 0;
  int64_t cube = 0;  ///< side of the matrices whose product is DGEMM's roofline

  friend bool operator==(const BenchShape&, const BenchShape&) = default;
};

/// "llama-3.1-8b:8192": a known layer and its tokens, which may be left out. Throws UsageError listing what is known.
BenchShape parse_bench_shape(std::string_view text);

/// Numbers in a word: median, least and most. Of at least one.
struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};
Spread spread(std::vector<double> numbers);

/// Something to be timed.
struct BenchPiece {
  std::string name;
  double work = 0;   ///< how much of `unit` it does
  std::string unit;  ///< FLOP, bytes, exponentials, scores, layers
  std::function<void()> run;
  /// Runs it and says how long that took, by a clock of its own; null: `run` is timed by the clock on the wall.
  std::function<double()> seconds = nullptr;
  std::optional<double> bytes = std::nullopt;  ///< that it moves through memory, if that is not its work
};

struct BenchTimes {
  std::string name;
  double work = 0;
  std::string unit;
  std::optional<double> bytes;
  std::vector<double> seconds;  ///< one per round
};

/// What a device's memory and its matrix products can do, as shares of which an operation's rates are given.
struct BenchShares {
  std::vector<double> copy_bandwidth;  ///< one per round
  std::vector<double> matrix_rate;     ///< likewise; empty for an operation without FLOP
};

/// What a ratio should be: at_least(0.8), at_most(1.25).
struct BenchGoal {
  double value = 0;
  bool is_least = false;  ///< else the most

  bool is_met(double ratio) const { return is_least ? ratio >= value : ratio <= value; }
};
constexpr BenchGoal at_least(double value) { return {value, true}; }
constexpr BenchGoal at_most(double value) { return {value, false}; }

struct BenchResult {
  std::string operation;
  std::vector<BenchTimes> times;  ///< the operation's, then those of what it is measured against
  bool warm_up = false;           ///< whether a round that does not count went before
  std::string ratio_meaning;
  std::vector<double> ratios;  ///< one per round; empty if there is none
  std::string no_ratio;        ///< why not
  std::optional<BenchGoal> goal;
  std::optional<BenchShares> shares;  ///< on a device; its rooflines are then all times but the first

  /// Whether the median ratio meets the goal; nullopt without ratio or goal.
  std::optional<bool> met() const;
  /// "met" or "missed", with "by the median" if some rounds say otherwise; empty where met() is nullopt.
  std::string verdict() const;
};

struct BenchRounds {
  std::optional<int64_t> asked;  ///< so many, however long they take; else as many as time allows
  double seconds = 60;           ///< after which no more rounds are begun than must be
};

/// How often to measure.
struct BenchPlan {
  bool warm_up = false;  ///< the first round does not count; not if it takes long, which drowns what it warms
  int64_t least = 0;     ///< rounds that count, whatever the time
  int64_t most = 0;

  friend bool operator==(const BenchPlan&, const BenchPlan&) = default;
};
/// What the seconds that the first round took leave room for.
BenchPlan plan(const BenchRounds& rounds, double first_round);

/// Times all pieces in every round.
///
/// ratio    of one round, from its seconds in the order of the pieces; may be left out
BenchResult measure(const std::vector<BenchPiece>& pieces, const BenchRounds& rounds,
                    const std::function<double(std::span<const double> seconds)>& ratio = nullptr);

/// Three significant digits and the unit that suits them: "43.9 ms", "1.29 s".
std::string duration_text(double seconds);
/// "26.7 GFLOP/s", "618 TFLOP/s", "4.21 TB/s", "765 million exponentials/s", "0.0208 layers/s".
std::string rate_text(double per_second, std::string_view unit);

struct BenchOptions {
  BenchShape shape;
  BenchRounds rounds;
  uint64_t seed = 1;
  int threads = 1;
  std::string fastest_core = {};  ///< whose DGEMM is the roofline; empty: that at work
};

/// How many threads OpenBLAS works on if asked for so many: fewer if it is not built for them.
int blas_threads(int asked);

/// An operation that can be measured.
struct BenchOperation {
  std::string_view name;
  std::string_view description;
  BenchResult (*run)(const BenchOptions&);
};

/// All of a backend's, in the order in which they are measured: the reference's on this processor, or those of
/// sim/bench/device_bench.hpp.
std::span<const BenchOperation> bench_operations(std::string_view backend);
std::span<const BenchOperation> reference_bench_operations();

}  // namespace kvbound::sim
