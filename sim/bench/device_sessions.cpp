#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/session/joined_rows.hpp>
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

// Requests of different lengths.
struct Requests {
  explicit Requests(const BenchOptions& options) {
    for (int64_t i = 1; i <= options.requests; ++i) {
      BenchOptions own = options;
      own.shape.tokens = options.shape.tokens * (options.requests + i) / (2 * options.requests);
      prompts.push_back({BenchLayer(own), bench_budgets(own)});
    }
  }

  struct Prompt {
    BenchLayer layer;  // which every layer has
    std::vector<int64_t> budgets;
  };
  std::vector<Prompt> prompts;
};

// Sessions of every layer of every request, which have compressed it and taken their first steps, one by one
// and together.
class WarmSessions {
 public:
  WarmSessions(const BenchOptions& options, const Requests& requests) {
    for (int64_t l = 0; l < options.layers; ++l) {
      for (const Requests::Prompt& prompt : requests.prompts) {
        const BenchLayer& layer = prompt.layer;
        sessions_.push_back(new_session());
        sessions_.back()->compress(layer.view(), parse_policy(options.policy), prompt.budgets);
        all_.push_back({sessions_.back().get()});
        steps_.push_back({layer.keys.view().row_of_slices(0), layer.values.view().row_of_slices(0),
                          layer.queries.view().row_of_slices(0)});
      }
    }
    take(kWarmUp);
    for (int64_t i = 0; i < kWarmUp; ++i) take_together(kTimedSteps);
  }

  // Waits for every step.
  void take(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) take_together(1);
  }

  // Queues all steps before it waits: the device goes from one to the next.
  void take_together(int64_t steps) {
    for (size_t i = 0; i < all_.size(); ++i) all_[i].views.assign(steps, steps_[i]);
    sessions_.front()->take_together(all_);
  }

 private:
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<SessionSteps> all_;
  std::vector<StepView> steps_;
};

using Steps = void (WarmSessions::*)(int64_t steps);

// Steps behind as many others, whose memory they find again. Where nothing is evicted the
// cache grows by a few entries.
double step_seconds(WarmSessions& sessions, Steps take) {
  (sessions.*take)(kTimedSteps);
  const Clock::time_point start = Clock::now();
  (sessions.*take)(kTimedSteps);
  return seconds_since(start);
}

// What sixteen steps together ask for, of which as many have been taken before.
cuda::DeviceCounters step_requests(WarmSessions& sessions) {
  sessions.take_together(kAskingSteps);
  const cuda::DeviceCounters before = cuda::counters();
  sessions.take_together(kAskingSteps);
  return cuda::counters() - before;
}

// K1 over as many entries as a step's queries see, for every step.
struct StepAttention {
  StepAttention(const BenchOptions& options, const Requests& requests)
      : shape(cuda::joined(options.shape.layer, options.layers * options.requests)),
        capacity(cuda::LayerCache<Stored>::capacity_for(requests.prompts.back().budgets.front(), true)),
        queries(random_tensor(1, shape.query_heads, shape.head_dim, BenchLayer::random(options, 10)),
                kStream),
        output(shape.query_heads, shape.head_dim),
        log_sum_exp(1, shape.query_heads),
        logits(shape.query_heads, capacity) {
    const LayerShape& one = options.shape.layer;
    for (int64_t l = 0; l < options.layers; ++l) {
      for (const Requests::Prompt& prompt : requests.prompts) {
        const int64_t own = prompt.budgets.front() + 1;
        entries.insert(entries.end(), one.kv_heads, own);
        work.bytes += attention_work(one, own).bytes;
        work.flop += attention_work(one, own).flop;
        ++segments;
      }
    }
    counts = cuda::Buffer<int64_t>(std::span<const int64_t>(entries));
    Entries of_one(one.kv_heads, capacity, one.head_dim);
    of_one.keys.assign(random_tensor(one.kv_heads, capacity, one.head_dim, BenchLayer::random(options, 16)),
                       kStream);
    of_one.values.assign(random_tensor(one.kv_heads, capacity, one.head_dim, BenchLayer::random(options, 17)),
                         kStream);
    const std::vector<Entries*> copies(segments, &of_one);
    cuda::join(copies, &Entries::keys, cache, kStream);
    cuda::join(copies, &Entries::values, cache, kStream);
    workspace = cuda::Buffer<std::byte>(
        cuda::attention_workspace(shape.query_heads, shape.kv_heads, shape.head_dim, capacity, segments));
  }

  void run(cuda::Stream stream) {
    cuda::attention<Stored>(std::as_const(queries).view(),
                            {std::as_const(cache.keys).view(), std::as_const(cache.values).view(),
                             counts.data(), nullptr, segments},
                            scale(shape), {output.data(), log_sum_exp.data(), logits.data()},
                            all_of(workspace), stream);
  }

  struct Entries {
    Entries(int64_t heads, int64_t rows, int64_t head_dim)
        : keys(heads, rows, head_dim), values(heads, rows, head_dim) {}
    cuda::StoredTensor<Stored> keys, values;
  };

  LayerShape shape;  // of all segments
  int64_t capacity, segments = 0;
  DeviceWork work = {};
  std::vector<int64_t> entries;  // [kv_heads]
  Entries cache{shape.kv_heads, capacity, shape.head_dim};
  cuda::StoredTensor<Stored> queries;
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
BenchResult predicted_step(const BenchOptions& options, const Requests& requests, StepAttention& attention) {
  std::unique_ptr<WarmSessions> sessions;
  run_sampled([&] { sessions = std::make_unique<WarmSessions>(options, requests); });
  BenchResult result;
  result.policy = canonical(parse_policy(options.policy));
  const DeviceWork floor = attention.work;
  result.prediction = predict(*options.gpu, counted_work([&] { sessions->take(1); }), floor);
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
  const Requests requests(options);
  StepAttention attention(options, requests);
  if (options.gpu) return predicted_step(options, requests, attention);
  WarmSessions sessions(options, requests);
  const bool is_one = attention.segments == 1;
  const auto piece = [&](const std::string& name, Steps take) {
    BenchPiece steps{name, as_real(kTimedSteps * attention.segments), is_one ? "steps" : kLayerSteps, nullptr,
                     [&sessions, take] { return step_seconds(sessions, take); }};
    steps.bytes = as_real(kTimedSteps) * attention.work.bytes;
    return steps;
  };
  BenchPiece alone = device_piece("attention over the same cache", attention.work,
                                  [&](cuda::Stream stream) { attention.run(stream); });
  if (!is_one) {
    alone.work = as_real(attention.segments);
    alone.unit = kLayerSteps;
    alone.bytes = attention.work.bytes;
  }
  BenchResult result = measure({piece("step, " + options.policy, &WarmSessions::take),
                                piece("queued together", &WarmSessions::take_together), alone},
                               options.rounds, [](std::span<const double> seconds) {
                                 return seconds[1] / as_real(kTimedSteps) / seconds[2];
                               });
  result.ratio_meaning = "times attention over the same cache, queued together";
  if (kNative) result.goal = at_most(kStepGoal);
  result.policy = canonical(parse_policy(options.policy));
  result.requests = step_requests(sessions);
  return result;
}

constexpr BenchOperation kSessionsOperations[] = {
    {"compress", "a layer by a policy (--policy) at 20 %, as a session does it", bench_session_compress,
     true},
    {"step",
     "decode steps by a policy (--policy) at 20 %, of --layers layers of --requests requests, against attention over the "
     "same caches",
     bench_step, true},
};

}  // namespace

std::span<const BenchOperation> session_operations() { return kSessionsOperations; }

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
