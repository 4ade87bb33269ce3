#include "bench_replay.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include <fmt/format.h>

#include <kvbound/reference/core/parallel_times.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/messages.hpp>

#include "bench_layer.hpp"

namespace kvbound::sim {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kThreads = 64;  // of the machine for which the time is computed
constexpr int64_t kReplaySteps = 16;

// Hosts, scores, a selection and a merging method that share what depends on the layer alone.
const std::vector<std::string> kReplayPolicies{"snapkv",
                                               "snapkv+critical",
                                               "snapkv+obcache-value",
                                               "snapkv+obcache-joint",
                                               "snapkv+exact",
                                               "snapkv+keepkv",
                                               "h2o",
                                               "h2o+critical",
                                               "tova",
                                               "streaming-llm"};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    if (mkdtemp(path_.data())) return;
    const int error = errno;
    throw traces::io_error("create a folder in", fs::temp_directory_path(), error);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = (fs::temp_directory_path() / "kvbound-bench-XXXXXX").string();
};

// A trace of one layer. Its file is open and has no name any more.
traces::Trace generated_trace(const BenchOptions& options) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/layer.safetensors";
  const LayerShape& shape = options.shape.layer;
  traces::generate({.kind = traces::AttentionKind::mixed,
                    .tokens = options.shape.tokens,
                    .decode = kReplaySteps,
                    .layers = 1,
                    .query_heads = shape.query_heads,
                    .kv_heads = shape.kv_heads,
                    .head_dim = shape.head_dim,
                    .model_dim = shape.model_dim,
                    .window_queries = BenchLayer::kWindow,
                    .dtype = Dtype::bf16,
                    .seed = options.seed},
                   path);
  return traces::Trace(path);
}

using Parts = std::vector<reference::ParallelTimes::Part>;

double serial_seconds(const Parts& parts) {
  double seconds = 0;
  for (const auto& part : parts) seconds += part.serial;
  return seconds;
}

double seconds_on_one(const Parts& parts) {
  double seconds = serial_seconds(parts);
  for (const auto& part : parts) seconds += part.parallel;
  return seconds;
}

double seconds_on_many(const Parts& parts) {
  double seconds = serial_seconds(parts);
  for (const auto& part : parts) seconds += part.on.front();
  return seconds;
}

Parts replayed(const traces::Trace& trace, const std::vector<Run>& runs) {
  Scope scope;
  scope.layers = {0};
  scope.steps = kReplaySteps;
  const reference::ParallelTimes times({kThreads});
  replay(trace, runs, scope);
  return times.parts();
}

// The seconds on many threads of a place, in every round.
std::vector<double> seconds_at(const std::string& place, const std::vector<Parts>& rounds) {
  std::vector<double> seconds;
  for (const Parts& parts : rounds) {
    const auto part = std::ranges::find(parts, place, &reference::ParallelTimes::Part::place);
    seconds.push_back(part == parts.end() ? 0 : part->on.front());
  }
  return seconds;
}

// One row for each place that takes a twentieth of the time on many threads or more, largest first.
void add_places(const std::vector<Parts>& rounds, BenchResult& result) {
  constexpr double kLeastShare = 0.05;
  std::vector<BenchTimes> rows;
  for (const auto& part : rounds.front()) {
    const BenchTimes row{"of which " + part.place, 1, "layers", std::nullopt, seconds_at(part.place, rounds)};
    if (spread(row.seconds).median >= kLeastShare * seconds_on_many(rounds.front())) rows.push_back(row);
  }
  std::ranges::sort(rows, std::greater<>(), [](const BenchTimes& row) { return spread(row.seconds).median; });
  result.times.insert(result.times.begin() + 2, rows.begin(), rows.end());
}

}  // namespace

BenchResult bench_replay(const BenchOptions& options) {
  const traces::Trace trace = generated_trace(options);
  const std::vector<Run> runs = every_run(named_policies(kReplayPolicies, std::nullopt),
                                          {parse_budget("20%")}, {std::string(kReference)});
  std::vector<Parts> rounds;
  const auto part = [&](const std::string& name, double (*seconds)(const Parts&)) {
    return BenchPiece{name, 1, "layers", nullptr, [&rounds, seconds] { return seconds(rounds.back()); }};
  };
  BenchResult result =
      measure({{"replay", 1, "layers", nullptr,
                [&] {
                  rounds.push_back(replayed(trace, runs));
                  return seconds_on_one(rounds.back());
                }},
               part(fmt::format("on {} threads, computed", kThreads), seconds_on_many),
               part("code outside parallel loops", serial_seconds)},
              options.rounds, [](std::span<const double> seconds) { return seconds[2] / seconds[1]; });
  rounds.erase(rounds.begin(), rounds.end() - std::ssize(result.times.front().seconds));
  add_places(rounds, result);
  result.ratio_meaning = fmt::format(
      "of the time on {} threads is spent outside parallel loops, most of it before {}", kThreads,
      std::ranges::max_element(rounds.back(), {}, &reference::ParallelTimes::Part::serial)->place);
  result.goal = at_most(0.05);
  return result;
}

}  // namespace kvbound::sim
