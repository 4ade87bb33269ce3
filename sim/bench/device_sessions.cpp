#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/session/layer_cache.hpp>
#include <kvbound/cuda/session/session.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "device_counting.hpp"
#include "device_measure.hpp"
#include "device_operations.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

constexpr int64_t kWarmUp = 2;  // times: the first time allocates, the second one records what is launched
constexpr int64_t kTimedSteps = kNative ? 16 : 4;  // an emulation's times are no GPU's
constexpr int64_t kAskingSteps = 16;               // whose requests are counted
constexpr double kStepGoal = 3;                    // times attention alone

std::unique_ptr<Session> new_session(OperationTimes* times = nullptr) {
  return cuda::KVBOUND_CUDA_BUILD::make_session(Dtype::bf16, times);
}

// The time of everything that a session does to a layer except its upload; each operation is waited for.
double compress_seconds(const BenchOptions& options, const BenchLayer& layer) {
  OperationTimes times;
  new_session(&times)->compress(layer.view(), parse_policy(options.policy), bench_budgets(options));
  double seconds = 0;
  for (const OperationTimes::Entry& entry : times.entries()) {
    if (entry.operation != "upload") seconds += entry.seconds;
  }
  return seconds;
}

// What a session asks for to compress a layer that it does not know yet.
cuda::DeviceCounters compress_requests(const BenchOptions& options, const BenchLayer& layer) {
  const std::unique_ptr<Session> session = new_session();
  const cuda::DeviceCounters before = cuda::counters();
  session->compress(layer.view(), parse_policy(options.policy), bench_budgets(options));
  return cuda::counters() - before;
}

// A session that has compressed the layer and taken its first steps, one by one and together.
class WarmSession {
 public:
  WarmSession(const BenchOptions& options, const BenchLayer& layer)
      : step_{layer.keys.view().row_of_slices(0), layer.values.view().row_of_slices(0),
              layer.queries.view().row_of_slices(0)},
        session_(new_session()) {
    session_->compress(layer.view(), parse_policy(options.policy), bench_budgets(options));
    take(kWarmUp);
    for (int64_t i = 0; i < kWarmUp; ++i) take_together(kTimedSteps);
  }

  // Waits for every step.
  void take(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) session_->step(step_);
  }

  // Queues all steps before it waits: the device goes from one to the next.
  void take_together(int64_t steps) { session_->steps(std::vector<StepView>(steps, step_)); }

 private:
  StepView step_;
  std::unique_ptr<Session> session_;
};

using Steps = void (WarmSession::*)(int64_t steps);

// Steps behind as many others, whose memory they find again. Where nothing is evicted the
// cache grows by a few entries.
double step_seconds(WarmSession& session, Steps take) {
  (session.*take)(kTimedSteps);
  const Clock::time_point start = Clock::now();
  (session.*take)(kTimedSteps);
  return seconds_since(start);
}

// What sixteen steps together ask for, of which as many have been taken before.
cuda::DeviceCounters step_requests(const BenchOptions& options, const BenchLayer& layer) {
  WarmSession session(options, layer);
  session.take_together(kAskingSteps);
  const cuda::DeviceCounters before = cuda::counters();
  session.take_together(kAskingSteps);
  return cuda::counters() - before;
}

// K1 over as many entries as a step's queries see, for every step.
struct StepAttention {
  explicit StepAttention(const BenchOptions& options)
      : shape(options.shape.layer),
        entries(bench_budgets(options).front() + 1),
        capacity(cuda::LayerCache<Stored>::capacity_for(entries - 1, true)),
        keys(random_tensor(shape.kv_heads, capacity, shape.head_dim, BenchLayer::random(options, 16)),
             kStream),
        values(random_tensor(shape.kv_heads, capacity, shape.head_dim, BenchLayer::random(options, 17)),
               kStream),
        queries(random_tensor(1, shape.query_heads, shape.head_dim, BenchLayer::random(options, 10)),
                kStream),
        output(shape.query_heads, shape.head_dim),
        log_sum_exp(1, shape.query_heads),
        logits(shape.query_heads, capacity),
        counts(std::span<const int64_t>(std::vector<int64_t>(shape.kv_heads, entries))),
        workspace(cuda::attention_workspace(shape.query_heads, shape.kv_heads, shape.head_dim, capacity)) {}

  void run(cuda::Stream stream) {
    cuda::attention<Stored>(
        std::as_const(queries).view(),
        {std::as_const(keys).view(), std::as_const(values).view(), counts.data(), nullptr}, scale(shape),
        {output.data(), log_sum_exp.data(), logits.data()}, all_of(workspace), stream);
  }

  LayerShape shape;
  int64_t entries, capacity;
  cuda::StoredTensor<Stored> keys, values, queries;
  cuda::DeviceMatrix output, log_sum_exp, logits;
  cuda::Buffer<int64_t> counts;
  cuda::Buffer<std::byte> workspace;
};

BenchResult predicted_compress(const BenchOptions& options, const BenchLayer& layer) {
  // A process checks its kernels once.
  static_cast<void>(cuda::norms_choice<Stored>(options.shape.layer.head_dim));
  static_cast<void>(cuda::search_choice<Stored>(options.shape.layer.head_dim));
  const std::unique_ptr<Session> session = new_session();
  BenchResult result;
  result.policy = canonical(parse_policy(options.policy));
  result.prediction = predict(*options.gpu, counted_work([&] {
    session->compress(layer.view(), parse_policy(options.policy), bench_budgets(options));
  }),
                              std::nullopt);
  return result;
}

// The step behind the warm-up, and attention over the same cache.
BenchResult predicted_step(const BenchOptions& options, const BenchLayer& layer, StepAttention& attention) {
  std::unique_ptr<WarmSession> session;
  run_sampled([&] { session = std::make_unique<WarmSession>(options, layer); });
  BenchResult result;
  result.policy = canonical(parse_policy(options.policy));
  const DeviceWork floor = attention_work(attention.shape, attention.entries);
  result.prediction = predict(*options.gpu, counted_work([&] { session->take(1); }), floor);
  const Prediction alone = predict(*options.gpu, counted_work([&] { attention.run(kStream); }), floor);
  result.prediction->attention_seconds = alone.time.device_seconds;
  return result;
}

// The time of a layer's compression by options.policy: of its operations, each of which is waited for.
BenchResult bench_session_compress(const BenchOptions& options) {
  const BenchLayer layer(options);
  if (options.gpu) return predicted_compress(options, layer);
  const BenchPiece compress{"compress, " + options.policy, 1, "layers", nullptr,
                            [&] { return compress_seconds(options, layer); }};
  BenchResult result = measure({compress}, options.rounds);
  result.ratio_meaning = "share of a roofline";
  result.no_ratio = "its operations have rooflines of their own";
  result.policy = canonical(parse_policy(options.policy));
  result.requests = compress_requests(options, layer);
  return result;
}

// Decode steps by options.policy, their records included: waited for one after the
// other, and queued together.
BenchResult bench_step(const BenchOptions& options) {
  const BenchLayer layer(options);
  StepAttention attention(options);
  if (options.gpu) return predicted_step(options, layer, attention);
  WarmSession session(options, layer);
  const auto piece = [&](const std::string& name, Steps take) {
    BenchPiece steps{name, as_real(kTimedSteps), "steps", nullptr,
                     [&session, take] { return step_seconds(session, take); }};
    steps.bytes = as_real(kTimedSteps) * attention_work(attention.shape, attention.entries).bytes;
    return steps;
  };
  const BenchPiece alone =
      device_piece("attention over the same cache", attention_work(attention.shape, attention.entries),
                   [&](cuda::Stream stream) { attention.run(stream); });
  BenchResult result = measure({piece("step, " + options.policy, &WarmSession::take),
                                piece("queued together", &WarmSession::take_together), alone},
                               options.rounds, [](std::span<const double> seconds) {
                                 return seconds[1] / as_real(kTimedSteps) / seconds[2];
                               });
  result.ratio_meaning = "times attention over the same cache, queued together";
  if (kNative) result.goal = at_most(kStepGoal);
  result.policy = canonical(parse_policy(options.policy));
  result.requests = step_requests(options, layer);
  return result;
}

constexpr BenchOperation kSessionsOperations[] = {
    {"compress", "a layer by a policy (--policy) at 20 %, as a session does it", bench_session_compress,
     true},
    {"step", "decode steps by a policy (--policy) at 20 %, against attention over the same cache", bench_step,
     true},
};

}  // namespace

std::span<const BenchOperation> session_operations() { return kSessionsOperations; }

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
