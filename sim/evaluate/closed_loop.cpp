#include "closed_loop.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/cache_positions.hpp>
#include <kvbound/sim/measure/mean.hpp>
#include <kvbound/sim/measure/metrics.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/sim/replay/backend.hpp>

#include "lockstep.hpp"
#include "next_token.hpp"
#include "prefill.hpp"

namespace kvbound::sim {
namespace {

// Logits of a sequence that are in memory at a time, and the tokens that they are of at most: more
// tokens together gain nothing.
constexpr int64_t kLogits = int64_t{1} << 20, kLogitTokens = 64;

// Keeps all entries, and thus is the full cache: no host has less to compute.
const Policy kFullCache{SnapKv{.window = 1, .pool = 1}, {}, {}, {}, {}};

// Whether the entries of a policy's cache depend on what is computed in decode steps: it
// then evicts or merges there.
bool depends_on_steps(const Policy& policy) { return evicts(policy.host) || rules_of(policy.merge).merges; }

// The means of a run's open-loop figures over all layers.
class OpenLoopMeans {
 public:
  void add(const LayerMetrics& metrics) {
    add(&OpenLoop::perturbation, metrics.perturbation.numbers());
    add(&OpenLoop::relative, metrics.relative.numbers());
    if (metrics.bound) add(&OpenLoop::bound, metrics.bound->numbers());
    add(&OpenLoop::kept_mass, metrics.kept_mass.numbers());
    add(&OpenLoop::layer_perturbation, metrics.layer_perturbation);
    add(&OpenLoop::layer_relative, metrics.layer_relative);
    add(&OpenLoop::recall, metrics.recall);
  }
  OpenLoop value() const {
    OpenLoop figures;
    for (size_t i = 0; i < means_.size(); ++i) figures.*kOpenLoopFigures[i].figure = means_[i].value();
    return figures;
  }

 private:
  void add(std::optional<double> OpenLoop::*figure, VectorView numbers) {
    const auto found = std::ranges::find(kOpenLoopFigures, figure, &OpenLoopFigure::figure);
    for (const double number : numbers) means_[found - kOpenLoopFigures.begin()].add(number);
  }

  std::array<Mean, kOpenLoopFigures.size()> means_;
};

class ClosedLoop {
 public:
  ClosedLoop(const traces::Checkpoint& checkpoint, const Task& task, const EvaluateOptions& options,
             const std::function<void(int64_t)>& advance)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        task_(task),
        options_(options),
        advance_(advance),
        scope_(budget_scope(config_, task, options)),
        open_loop_(options.runs.size()) {
    if (!options.given.empty()) given_ = GivenFiles(options.given, given_subject(config_, task, options));
    for (const Run& run : options.runs)
      budgets_.push_back(run_budgets(run.policy.policy, run.budget, given_.facts(), scope_).heads);
  }

  TaskResult run() {
    const Clock::time_point start = Clock::now();
    const Prefill prefill(checkpoint_, std::span(task_.prompt).first(task_.compress_at),
                          options_.window_of(task_.compress_at), options_.dtype, advance_);
    result_.id = task_.id;
    result_.prefill_seconds = seconds_since(start);
    const Clock::time_point decode_start = Clock::now();
    const std::vector<int64_t> tokens = decoded_tokens();
    result_.steps = std::ssize(tokens);
    result_.runs.resize(options_.runs.size());
    for (RunFigures& figures : result_.runs) {
      figures.entries.resize(tokens.size());
      figures.stored_entries.resize(tokens.size());
    }
    Lockstep lockstep(checkpoint_, tokens, task_.compress_at, std::ssize(options_.runs) + 1, options_.dtype);
    for (int64_t l = 0; l < config_.layers; ++l) run_layer(l, prefill, lockstep);
    for (size_t r = 0; r < open_loop_.size(); ++r) result_.runs[r].open_loop = open_loop_[r].value();
    predict(prefill, lockstep);
    result_.decode_seconds = seconds_since(decode_start);
    return std::move(result_);
  }

 private:
  std::vector<int64_t> decoded_tokens() const {
    std::vector<int64_t> tokens(task_.prompt.begin() + task_.compress_at, task_.prompt.end());
    tokens.insert(tokens.end(), task_.target.begin(), task_.target.end() - 1);
    return tokens;
  }

  // What a sequence's steps bring, for the heads that have a cache.
  DecodeSteps inputs(const Lockstep& lockstep, int64_t sequence) const {
    DecodeSteps steps = lockstep.inputs(sequence);
    if (options_.heads == traces::CacheHeads::query) {
      for (Tensor* const tensor : {&steps.keys, &steps.values})
        *tensor = traces::per_query_head(shape_of(config_), *tensor);
    }
    return steps;
  }

  void run_layer(int64_t l, const Prefill& prefill, Lockstep& lockstep) {
    lockstep.project(l);
    const DecodeSteps full_steps = inputs(lockstep, 0);
    const auto shared = std::make_shared<const traces::Layer>(prefill.layer(l, full_steps));
    const traces::Layer& layer = *shared;
    std::vector<LayerRecord> records;
    {
      const std::unique_ptr<Session> session = open_session(options_.runs.front().backend, options_.dtype);
      const std::vector<int64_t> all(scope_.shape.kv_heads, task_.compress_at);
      lockstep.set_outputs(0, decode(*session, layer, kFullCache, all, full_steps).steps);
      for (size_t r = 0; r < options_.runs.size(); ++r)
        records.push_back(run_policy(r, l, *session, shared, full_steps, lockstep));
    }
    const std::vector<LayerMetrics> metrics =
        measure(layer, records, {}, std::min(options_.recall_of, task_.compress_at));
    lockstep.finish(l);
    for (size_t r = 0; r < metrics.size(); ++r) {
      open_loop_[r].add(metrics[r]);
      for (int64_t t = 0; t < result_.steps; ++t) {
        for (int64_t h = 0; h < config_.query_heads; ++h)
          result_.runs[r].violations += metrics[r].violates(t, h);
      }
      result_.runs[r].hidden_error.push_back(lockstep.relative_distance(static_cast<int64_t>(r) + 1));
    }
  }

  // Compresses the layer's prompt and takes decode steps.
  LayerRecord decode(Session& session, const traces::Layer& layer, const Policy& policy,
                     const std::vector<int64_t>& budgets, const DecodeSteps& steps) const {
    LayerRecord record;
    record.prompt = session.compress(layer.prompt(), policy, layer_budgets(policy, budgets));
    record.steps = session.steps(steps.views());
    return record;
  }

  // Decodes a run's own sequence through a layer. Returns the record of the sequence with the full cache by
  // the same policy. A policy whose choices do not depend on decode steps makes the same ones there: its own
  // record serves, because `measure` reads no outputs of runs that only evict.
  LayerRecord run_policy(size_t r, int64_t l, Session& session,
                         const std::shared_ptr<const traces::Layer>& shared, const DecodeSteps& full_steps,
                         Lockstep& lockstep) {
    const traces::Layer& layer = *shared;
    const std::vector<int64_t>& budgets = budgets_[r][l];
    const int64_t sequence = static_cast<int64_t>(r) + 1;
    const Policy policy = given_.bound(options_.runs[r].policy.policy, shared, budgets.front());
    LayerRecord own = decode(session, layer, policy, budgets, inputs(lockstep, sequence));
    lockstep.set_outputs(sequence, own.steps);
    count_entries(own, policy, result_.runs[r]);
    if (advance_) advance_(result_.steps);
    return depends_on_steps(policy) ? decode(session, layer, policy, budgets, full_steps) : std::move(own);
  }

  // Adds a layer's entries to the means over layers and KV heads.
  void count_entries(const LayerRecord& record, const Policy& policy, RunFigures& figures) const {
    const bool keeps_all = rules_of(policy.merge).period.has_value();
    const auto heads = static_cast<double>(config_.layers * scope_.shape.kv_heads);
    for (int64_t g = 0; g < scope_.shape.kv_heads; ++g) {
      reference::CachePositions positions(record.prompt, g, task_.compress_at);
      for (int64_t t = 0; t < result_.steps; ++t) {
        const auto entries = static_cast<double>(std::ssize(positions.at(record.steps, t)));
        const auto all = static_cast<double>(task_.compress_at + t + 1);
        figures.entries[t] += entries / heads;
        figures.stored_entries[t] += (entries + (keeps_all ? all : 0)) / heads;
      }
    }
  }

  // Figures of the predicted tokens.
  void predict(const Prefill& prefill, Lockstep& lockstep) {
    const auto target = std::ssize(task_.target);
    const int64_t first_step =
        std::ssize(task_.prompt) - 1 - task_.compress_at;  // that predicts: -1 is the prefill's last
    int64_t i = 0;
    if (first_step < 0) predict_by_prefill(prefill.logits(), i++);
    const int64_t most = std::clamp<int64_t>(kLogits / config_.vocabulary, 1, kLogitTokens);
    while (i < target) {
      const int64_t count = std::min(most, target - i);
      const std::vector<float> logits = lockstep.logits(first_step + i, count);
      for (int64_t j = 0; j < count; ++j) {
        predict_token(i + j, [&](int64_t sequence) {
          return std::span(logits).subspan((sequence * count + j) * config_.vocabulary, config_.vocabulary);
        });
      }
      i += count;
    }
  }

  // The first token's distribution if nothing of the prompt is behind the compression: the
  // full cache's for all runs.
  void predict_by_prefill(const std::vector<float>& logits, int64_t i) {
    predict_token(i, [&](int64_t) { return std::span<const float>(logits); });
  }

  // logits  called with a sequence, returns [vocabulary]
  template <class Logits>
  void predict_token(int64_t i, const Logits& logits) {
    const int64_t token = task_.target[i];
    const std::vector<double> full = log_probabilities(logits(0));
    result_.full_nll.push_back(negative_log_likelihood(logits(0), token));
    result_.full_top1.push_back(most_likely(logits(0)));
    std::vector<double> kl(options_.runs.size()), nll(kl.size());
    reference::parallel_for(std::ssize(kl), [&](int64_t r) {
      kl[r] = divergence(full, log_probabilities(logits(r + 1)));
      nll[r] = negative_log_likelihood(logits(r + 1), token);
    });
    for (size_t r = 0; r < kl.size(); ++r) {
      result_.runs[r].kl.push_back(kl[r]);
      result_.runs[r].nll.push_back(nll[r]);
      result_.runs[r].top1.push_back(most_likely(logits(static_cast<int64_t>(r) + 1)));
    }
  }

  const traces::Checkpoint& checkpoint_;
  const traces::ModelConfig& config_;
  const Task& task_;
  const EvaluateOptions& options_;
  const std::function<void(int64_t)>& advance_;
  BudgetScope scope_;
  GivenFiles given_;
  std::vector<HeadBudgets> budgets_;      // [runs]
  std::vector<OpenLoopMeans> open_loop_;  // [runs]
  TaskResult result_;
};

}  // namespace

LayerShape shape_of(const traces::ModelConfig& model) {
  return {model.query_heads, model.kv_heads, model.head_dim, model.model_dim};
}

BudgetScope budget_scope(const traces::ModelConfig& model, const Task& task, const EvaluateOptions& options) {
  std::vector<int64_t> layers(model.layers);
  std::iota(layers.begin(), layers.end(), 0);
  return {traces::with_caches_of(shape_of(model), options.heads), model.layers, layers, task.compress_at,
          options.window_of(task.compress_at)};
}

traces::GivenSubject given_subject(const traces::ModelConfig& model, const Task& task,
                                   const EvaluateOptions& options) {
  const BudgetScope scope = budget_scope(model, task, options);
  return {"task_id", task.id, "the task's", scope.shape, scope.layers, scope.prompt_tokens, scope.replayed};
}

int64_t work_of(const Task& task, const EvaluateOptions& options, int64_t layers) {
  return (task.compress_at + steps_of(task) * std::ssize(options.runs)) * layers;
}

TaskResult run_closed_loop(const traces::Checkpoint& checkpoint, const Task& task,
                           const EvaluateOptions& options, const std::function<void(int64_t)>& advance) {
  return ClosedLoop(checkpoint, task, options, advance).run();
}

}  // namespace kvbound::sim
