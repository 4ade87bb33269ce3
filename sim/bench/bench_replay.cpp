#include "bench_replay.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>

#include <fmt/format.h>
#include <omp.h>

#include <kvbound/reference/core/parallel_times.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/replay/runs.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/messages.hpp>

#include "bench_layer.hpp"

namespace kvbound::sim {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kThreads = 64;  // of the machine for which the time is computed
constexpr int64_t kReplaySteps = 16;

// All hosts, and all ways of scoring and selecting whose cost grows linearly with the tokens.
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

// A trace of one layer, in a file without a name.
class GeneratedTrace {
 public:
  explicit GeneratedTrace(const BenchOptions& options) {
    std::string name = (fs::temp_directory_path() / "kvbound-bench-XXXXXX").string();
    if (!mkdtemp(name.data())) throw traces::io_error("create a folder in", fs::temp_directory_path(), errno);
    const std::unique_ptr<const std::string, void (*)(const std::string*)> folder(
        &name, [](const std::string* path) {
          std::error_code ignored;
          fs::remove_all(*path, ignored);
        });
    const std::string path = name + "/layer.safetensors";
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
    trace_ = std::make_unique<traces::Trace>(path);
  }

  const traces::Trace& operator*() const { return *trace_; }

 private:
  std::unique_ptr<traces::Trace> trace_;
};

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

// Replays on one thread, and restores the number of threads.
Parts replayed(const traces::Trace& trace, const std::vector<Run>& runs, int threads) {
  Scope scope;
  scope.layers = {0};
  scope.steps = kReplaySteps;
  omp_set_num_threads(1);
  reference::ParallelTimes times({kThreads});
  replay(trace, runs, scope);
  omp_set_num_threads(threads);
  return times.parts();
}

// One row for each place that takes a twentieth of the time on many threads or more, largest first.
void add_places(const std::vector<Parts>& rounds, BenchResult& result) {
  constexpr double kLeastShare = 0.05;
  std::vector<BenchTimes> rows;
  for (size_t p = 0; p < rounds.front().size(); ++p) {
    BenchTimes row{"of which " + rounds.front()[p].place, 1, "layers", std::nullopt, {}};
    for (const Parts& parts : rounds) row.seconds.push_back(parts[p].on.front());
    if (spread(row.seconds).median >= kLeastShare * seconds_on_many(rounds.front())) rows.push_back(row);
  }
  std::ranges::sort(rows, std::greater<>(), [](const BenchTimes& row) { return spread(row.seconds).median; });
  result.times.insert(result.times.begin() + 2, rows.begin(), rows.end());
}

}  // namespace

BenchResult bench_replay(const BenchOptions& options) {
  const GeneratedTrace trace(options);
  const std::vector<Run> runs = every_run(named_policies(kReplayPolicies, std::nullopt),
                                          {parse_budget("20%")}, {std::string(kReference)});
  std::vector<Parts> rounds;
  const auto part = [&](const std::string& name, double (*seconds)(const Parts&)) {
    return BenchPiece{name, 1, "layers", nullptr, [&rounds, seconds] { return seconds(rounds.back()); }};
  };
  BenchResult result =
      measure({{"replay", 1, "layers", nullptr,
                [&] {
                  rounds.push_back(replayed(*trace, runs, options.threads));
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
