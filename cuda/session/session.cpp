#include "session.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>

#include "compaction.hpp"
#include "head_eviction.hpp"
#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "prompt_selection.hpp"
#include "ranking.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

// What a decode step's queries and entries become on the device.
template <Storage T>
struct StepMemory {
  explicit StepMemory(const LayerShape& shape)
      : keys(shape.kv_heads, 1, shape.head_dim),
        values(shape.kv_heads, 1, shape.head_dim),
        queries(1, shape.query_heads, shape.head_dim),
        output(shape.query_heads, shape.head_dim),
        log_sum_exp(1, shape.query_heads) {}

  void upload(const StepView& view, Stream stream) {
    const auto as_slices = [](MatrixView rows) {
      return TensorView{rows.data, rows.rows, 1, rows.cols, rows.row_stride};
    };
    keys.assign(as_slices(view.keys), stream);
    values.assign(as_slices(view.values), stream);
    queries.assign(view.queries, stream);
  }

  StoredTensor<T> keys, values;  // [kv_heads, 1, head_dim]
  StoredTensor<T> queries;       // [1, query_heads, head_dim]
  DeviceMatrix output;           // [query_heads, head_dim]
  DeviceMatrix log_sum_exp;      // [1, query_heads]
};

// The state from which a host evicts during decoding.
struct Evictions {
  Evictions(const LayerShape& shape, int64_t capacity, const KeptEntries& kept, Stream stream)
      : budgets(std::span<const int64_t>(kept.budgets), stream),
        running(shape.query_heads, capacity),
        reduced(shape.kv_heads, capacity),
        logits(shape.query_heads, capacity),
        evicted(shape.kv_heads) {}

  Buffer<int64_t> budgets;  // [kv_heads]
  DeviceMatrix running;     // [query_heads, capacity]
  DeviceMatrix reduced;     // [kv_heads, capacity]
  DeviceMatrix logits;      // [query_heads, capacity]
  Buffer<int64_t> evicted;  // [kv_heads]
};

template <Storage T>
class DeviceSession final : public Session {
 public:
  DeviceSession(OperationTimes* times, Stream stream) : queue_(times, stream) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    require_supported(policy);
    begin(layer, policy);
    const int64_t most = std::ranges::max(budgets);
    KeptEntries kept(budgets, LayerCache<T>::capacity_for(most, evicts(policy.host)), queue_.stream());
    PromptRecord record;
    std::optional<Ranking> ranking;
    if (rules_.ranks()) {
      ranking = rank(policy, rules_, *known_, queue_);
      record = select_prompt(policy, *ranking, *known_, queue_, kept);
    } else {
      record = keep_newest(layer.prompt_tokens(), rules_.sinks, kept, queue_.stream());
    }
    evictions_.reset();
    if (rules_.evicts) begin_evicting(ranking ? &*ranking : nullptr, kept);
    cache_.fill(layer_->view(), kept, !rules_.evicts, queue_);
    synchronise(queue_.stream());  // the ranking is released
    return record;
  }

  StepRecord step(const StepView& view) override {
    require_consistent(view, shape_);
    step_->upload(view, queue_.stream());
    cache_.append(std::as_const(step_->keys).view(), std::as_const(step_->values).view(), next_position_,
                  queue_);
    queue_.run("attention", [&] { attend(); });
    if (evictions_) queue_.run("eviction", [&] { evict(); });
    ++next_position_;
    StepRecord record{step_->output.download("output", queue_.stream())};
    if (!evictions_) return record;
    record.evicted.resize(shape_.kv_heads);
    evictions_->evicted.download(record.evicted, queue_.stream());
    queue_.require_numbers("score");
    return record;
  }

 private:
  void begin(const LayerView& layer, const Policy& policy) {
    shape_ = layer.shape;
    score_ = kvbound::rules_of(policy.score);
    rules_ = kvbound::rules_of(policy.host, layer.prompt_tokens(), 0);
    next_position_ = layer.prompt_tokens();
    if (layer_) {
      require_equal("tokens of the layer", layer.prompt_tokens(), "tokens of the session's layer",
                    layer_->view().prompt_tokens());
      return;
    }
    layer_.emplace(layer, queue_);
    known_.emplace(layer_->view(), queue_);
    step_.emplace(shape_);
  }

  // The running scores begin with the kept entries' scores at the prompt's end.
  //
  // ranking  null for hosts that rank no entries
  void begin_evicting(const Ranking* ranking, KeptEntries& kept) {
    const int64_t capacity = kept.positions.stride();
    evictions_.emplace(shape_, capacity, kept, queue_.stream());
    if (!ranking) return;
    queue_.run("compaction", [&] {
      compact_numbers({ranking->head_scores.data(), shape_.query_heads, ranking->head_scores.cols()},
                      shape_.kv_heads, kept.positions.data(), capacity, kept.counts.data(),
                      {evictions_->running.data(), shape_.query_heads, capacity}, queue_.stream());
    });
  }

  void attend() {
    const int64_t capacity = cache_.capacity();
    const int64_t bytes = attention_workspace(shape_.query_heads, shape_.kv_heads, shape_.head_dim, capacity);
    attention<T>(
        std::as_const(step_->queries).view(), cache_.view(), layer_->view().scale,
        {step_->output.data(), step_->log_sum_exp.data(), evictions_ ? evictions_->logits.data() : nullptr},
        queue_.workspace(bytes), queue_.stream());
  }

  void evict() {
    Evictions& state = *evictions_;
    const CacheSlots slots = cache_.slots();
    if (rules_.ranks()) {
      update_scores({nullptr, state.logits.data(), step_->log_sum_exp.data(), nullptr}, slots,
                    shape_.query_heads, rules_.step_update, score_.group, state.running.data(),
                    state.reduced.data(), queue_.stream());
    }
    cuda::evict({rules_.sinks, rules_.recent, rules_.fills_recent, state.budgets.data()}, slots,
                rules_.ranks() ? state.reduced.data() : nullptr, next_position_, state.evicted.data(),
                queue_.status(), queue_.stream());
  }

  Queue queue_;
  LayerShape shape_;
  ScoreRules score_;
  HostRules rules_;
  int64_t next_position_ = 0;
  std::optional<UploadedLayer<T>> layer_;
  std::optional<LayerScores<T>> known_;
  LayerCache<T> cache_;
  std::optional<StepMemory<T>> step_;
  std::optional<Evictions> evictions_;  // for hosts that evict
};

[[noreturn]] void refuse(Dtype storage) {
  throw InvalidPolicy("a device stores a cache as F32, F16 or BF16, not as " + std::string(name(storage)));
}

// The kernel that computes the norms of a session of this storage.
NormsKernel norms_kernel(Dtype storage, int64_t head_dim) {
  if (storage == Dtype::f32) return chosen_norms_kernel<float>(head_dim);
  if (storage == Dtype::f16) return chosen_norms_kernel<Float16>(head_dim);
  if (storage == Dtype::bf16) return chosen_norms_kernel<Bfloat16>(head_dim);
  refuse(storage);
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD

namespace KVBOUND_CUDA_BUILD {

std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times, Stream stream) {
  if (storage == Dtype::f32) return std::make_unique<DeviceSession<float>>(times, stream);
  if (storage == Dtype::f16) return std::make_unique<DeviceSession<Float16>>(times, stream);
  if (storage == Dtype::bf16) return std::make_unique<DeviceSession<Bfloat16>>(times, stream);
  refuse(storage);
}

SessionArithmetic session_arithmetic(Dtype storage, const LayerShape& shape, int64_t prompt_tokens,
                                     int64_t entries) {
  return {.window_attention = window_arithmetic(prompt_tokens, shape.head_dim),
          .projected_value_norms =
              norms_arithmetic(shape.head_dim, shape.model_dim, norms_kernel(storage, shape.head_dim)),
          .attention = attention_arithmetic(entries, shape.head_dim)};
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
