// How fast an operation is, against ceilings that are measured in the same run.
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
  int64_t cube = 0;  ///< side of the matrices whose product is DGEMM's ceiling

  friend bool operator==(const BenchShape&, const BenchShape&) = default;
};

/// "llama-3.1-8b:32768": a known layer and its tokens. Throws UsageError listing what is known.
BenchShape parse_bench_shape(std::string_view text);

/// Numbers in a word: median, least and most. Of at least one.
struct Spread {
  double median = 0;  ///< of an even count the mean of the middle two
  double least = 0;
  double most = 0;
};
Spread spread(std::vector<double> numbers);

/// Something to be timed.
struct BenchPiece {
  std::string name;
  double work = 0;   ///< how much of `unit` it does
  std::string unit;  ///< FLOP, exponentials, scores, layers
  std::function<void()> run;
};

struct BenchTimes {
  std::string name;
  double work = 0;
  std::string unit;
  std::vector<double> seconds;  ///< one per round
};

struct BenchGoal {
  double value = 0;
  bool at_least = false;  ///< else at most
};

struct BenchResult {
  std::string operation;
  std::vector<BenchTimes> times;  ///< the operation's, then those of what it is measured against
  std::string ratio_meaning;
  std::vector<double> ratios;  ///< one per round; empty if there is none
  std::string no_ratio;        ///< why not
  std::optional<BenchGoal> goal;

  /// Whether the median ratio meets the goal; nullopt without ratio or goal.
  std::optional<bool> met() const;
};

struct BenchRounds {
  int64_t most = 7;
  double seconds = 60;  ///< no round is begun later than that
};

/// Times all pieces in every round. A first round to warm up is not counted, unless time is up after it.
///
/// ratio    of one round, from its seconds in the order of the pieces
/// returns  times and ratios of as many rounds as there was time for, at least one
BenchResult measure(const std::vector<BenchPiece>& pieces, const BenchRounds& rounds,
                    const std::function<double(std::span<const double> seconds)>& ratio);

struct BenchOptions {
  BenchShape shape;
  BenchRounds rounds;
  uint64_t seed = 1;
  int threads = 1;
};

/// An operation that can be measured.
struct BenchOperation {
  std::string_view name;
  std::string_view description;
  BenchResult (*run)(const BenchOptions&);
};

/// All of them, in the order in which they are measured.
std::span<const BenchOperation> bench_operations();

}  // namespace kvbound::sim
