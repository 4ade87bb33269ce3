#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include <kvbound/sim/measure/median.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kLeastTokens = 256, kMostTokens = 131072;

// Layers known by name, from the models' published configurations, with the default number of tokens: a
// length that all three models were trained for; for pocket, the length of the sample trace.
const BenchShape kShapes[] = {
    {"llama-3.1-8b", {32, 8, 128, 4096}, 32768, 2048},
    {"mistral-7b", {32, 8, 128, 4096}, 32768, 2048},
    {"qwen2.5-32b", {40, 8, 128, 5120}, 32768, 2048},
    {"pocket", {8, 2, 64, 256}, 1984, 256},
};

double timed(const BenchPiece& piece) {
  if (piece.seconds) return piece.seconds();
  // Longer than the threads of OpenBLAS (some 30 ms) and of OpenMP spin before they sleep.
  constexpr std::chrono::milliseconds kPause(50);
  std::this_thread::sleep_for(kPause);
  const auto start = Clock::now();
  piece.run();
  return seconds_since(start);
}

}  // namespace

BenchShape parse_bench_shape(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  std::string known;
  for (const BenchShape& shape : kShapes) {
    known += fmt::format("{}{}:{}", known.empty() ? "" : ", ", shape.name, shape.tokens);
    if (text.substr(0, colon) != shape.name) continue;
    BenchShape asked = shape;
    if (colon < text.size()) asked.tokens = parse_integer(text.substr(colon + 1)).value_or(0);
    if (asked.tokens >= kLeastTokens && asked.tokens <= kMostTokens) return asked;
  }
  throw UsageError(fmt::format("--shape {}: known shapes: {}; or with other tokens, {} to {}",
                               traces::quoted(text), known, kLeastTokens, kMostTokens));
}

Spread spread(std::vector<double> numbers) {
  const auto [least, most] = std::ranges::minmax(numbers);
  return {median(std::move(numbers)), least, most};
}

std::optional<bool> BenchResult::met() const {
  if (!goal || ratios.empty()) return std::nullopt;
  return goal->is_met(spread(ratios).median);
}

std::string BenchResult::verdict() const {
  const auto by_median = met();
  if (!by_median) return "";
  const bool unanimous =
      std::ranges::all_of(ratios, [&](double ratio) { return goal->is_met(ratio) == *by_median; });
  return std::string(*by_median ? "met" : "missed") + (unanimous ? "" : " by the median");
}

BenchPlan plan(const BenchRounds& rounds, double first_round) {
  constexpr int64_t kMost = 7, kLeast = 3, kLeastOfLong = 2;
  constexpr double kLongWarmUp = 0.1;  // as a share of the time available
  const bool warm_up = first_round <= kLongWarmUp * rounds.seconds;
  if (rounds.asked) return {warm_up, *rounds.asked, *rounds.asked};
  return {warm_up, first_round > rounds.seconds ? kLeastOfLong : kLeast, kMost};
}

BenchResult measure(const std::vector<BenchPiece>& pieces, const BenchRounds& rounds,
                    const std::function<double(std::span<const double> seconds)>& ratio) {
  BenchResult result;
  for (const BenchPiece& piece : pieces) {
    result.times.push_back({piece.name, piece.work, piece.unit, piece.bytes, {}});
  }
  const auto time_all = [&] {
    std::vector<double> seconds;
    for (const BenchPiece& piece : pieces) seconds.push_back(timed(piece));
    return seconds;
  };
  int64_t counted = 0;
  const auto count = [&](const std::vector<double>& seconds) {
    for (size_t i = 0; i < pieces.size(); ++i) result.times[i].seconds.push_back(seconds[i]);
    if (ratio) result.ratios.push_back(ratio(seconds));
    ++counted;
  };
  const auto start = Clock::now();
  const std::vector<double> first = time_all();
  const BenchPlan planned = plan(rounds, seconds_since(start));
  result.warm_up = planned.warm_up;
  if (!planned.warm_up) count(first);
  while (counted < planned.least || (counted < planned.most && seconds_since(start) < rounds.seconds)) {
    count(time_all());
  }
  return result;
}

}  // namespace kvbound::sim
