#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "command_line.hpp"
#include "number.hpp"

namespace kvbound::sim {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLeastTokens = 256, kMostTokens = 131072;

// Layers known by name; tokens are the asker's.
const BenchShape kShapes[] = {
    {"llama-3.1-8b", {32, 8, 128, 4096}, 0, 2048},
    {"pocket", {8, 2, 64, 256}, 0, 256},
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double timed(const BenchPiece& piece) {
  // Longer than OpenBLAS' threads (some 30 ms) and OpenMP's spin before they sleep.
  constexpr std::chrono::milliseconds kPause(50);
  std::this_thread::sleep_for(kPause);
  const auto start = Clock::now();
  piece.run();
  return seconds_since(start);
}

}  // namespace

BenchShape parse_bench_shape(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const int64_t tokens = parse_integer(text.substr(std::min(colon + 1, text.size()))).value_or(0);
  std::string known;
  for (const BenchShape& shape : kShapes) {
    if (text.substr(0, colon) == shape.name && tokens >= kLeastTokens && tokens <= kMostTokens) {
      BenchShape asked = shape;
      asked.tokens = tokens;
      return asked;
    }
    known += (known.empty() ? "" : ", ") + shape.name + ":TOKENS";
  }
  throw UsageError(fmt::format("--shape '{}': known shapes: {}, with {} to {} tokens", text, known,
                               kLeastTokens, kMostTokens));
}

Spread spread(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  const size_t middle = numbers.size() / 2;
  const double median =
      numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
  return {median, numbers.front(), numbers.back()};
}

std::optional<bool> BenchResult::met() const {
  if (!goal || ratios.empty()) return std::nullopt;
  const double ratio = spread(ratios).median;
  return goal->at_least ? ratio >= goal->value : ratio <= goal->value;
}

BenchResult measure(const std::vector<BenchPiece>& pieces, const BenchRounds& rounds,
                    const std::function<double(std::span<const double> seconds)>& ratio) {
  BenchResult result;
  for (const BenchPiece& piece : pieces) result.times.push_back({piece.name, piece.work, piece.unit, {}});
  const auto start = Clock::now();
  bool warm = false;
  while (static_cast<int64_t>(result.ratios.size()) < rounds.most) {
    std::vector<double> seconds;
    for (const BenchPiece& piece : pieces) seconds.push_back(timed(piece));
    const bool time_is_up = seconds_since(start) >= rounds.seconds;
    if (warm || time_is_up) {
      for (size_t i = 0; i < pieces.size(); ++i) result.times[i].seconds.push_back(seconds[i]);
      result.ratios.push_back(ratio(seconds));
    }
    warm = true;
    if (time_is_up) break;
  }
  return result;
}

}  // namespace kvbound::sim
