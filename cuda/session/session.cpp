#include "session.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>

#include "evictions.hpp"
#include "full_cache.hpp"
#include "head_budgets.hpp"
#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "merges.hpp"
#include "prompt_merging.hpp"
#include "prompt_selection.hpp"
#include "ranking.hpp"
#include "scored_queries.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

// A decode step's entries and queries.
template <Storage T>
struct StepInputs {
  explicit StepInputs(const LayerShape& shape)
      : keys(shape.kv_heads, 1, shape.head_dim),
        values(shape.kv_heads, 1, shape.head_dim),
        queries(1, shape.query_heads, shape.head_dim) {}

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
};

template <Storage T>
class DeviceSession final : public Session {
 public:
  DeviceSession(OperationTimes* times, Stream stream) : queue_(times, stream) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    begin(layer, policy);
    std::vector<int64_t> own(budgets.begin(), budgets.end());
    std::optional<Ranking> ranking;
    if (rules_.ranks()) {
      ranking = rank(policy, rules_, *known_, queue_);
      own = head_budgets(policy, *ranking, budgets, *known_, queue_);
    }
    KeptEntries kept(own, LayerCache<T>::capacity_for(std::ranges::max(own), rules_.evicts), queue_.stream());
    PromptRecord record;
    if (ranking) {
      record = select_prompt(policy, *ranking, *known_, queue_, kept);
    } else {
      record = keep_newest(layer.prompt_tokens(), rules_.sinks, kept, queue_.stream());
    }
    budgets_ = kept.budgets;
    std::optional<PromptRoots> roots;
    if (merge_rules_.order == MergeOrder::merge_first) {
      roots.emplace(*ranking, *merge_rules_.target, *known_, queue_, kept);
      record.kept = roots->kept();
    }
    record.merges = fill(layer_->view(), &*known_, kept, record.kept, roots ? &*roots : nullptr);
    if (merge_rules_.period) full_cache_.emplace(layer_->view(), queue_);
    evictions_.reset();
    if (rules_.evicts) {
      evictions_.emplace(policy, budgets_, ranking ? &ranking->head_scores : nullptr, cache_, *known_,
                         queue_);
    }
    query_.emplace(shape_, rules_.evicts ? cache_.capacity() : 0);
    synchronise(queue_.stream());  // the ranking is released
    return record;
  }

  StepRecord step(const StepView& view) override {
    require_consistent(view, shape_);
    step_->upload(view, queue_.stream());
    const ScoredStep<T> inputs{std::as_const(step_->queries).view(), std::as_const(step_->values).view()};
    const DeviceTensor<const T> keys = std::as_const(step_->keys).view();
    StepRecord record;
    if (full_cache_) full_cache_->append(keys, inputs.values, next_position_, queue_);
    record.rebuilt = merge_rules_.rebuilds_at(next_position_ - layer_->view().prompt_tokens());
    if (record.rebuilt) rebuild(inputs.queries, record);
    const bool merges = merges_ != nullptr && evictions_.has_value();
    if (!record.rebuilt) cache_.append(keys, inputs.values, next_position_, queue_);
    if (merges && !record.rebuilt) merges_->enter(keys, cache_, queue_);
    queue_.run("attention", [&] {
      query_->attend(inputs.queries, cache_.view(), layer_->view().scale, queue_);
      if (evictions_) evictions_->score(inputs, cache_, *query_, queue_);
      if (merges) merges_->observe(*query_, cache_, next_position_ + 1, queue_);
    });
    if (evictions_) queue_.run("eviction", [&] { evictions_->evict(cache_, next_position_, queue_); });
    if (merges) {
      merges_->merge(inputs.queries, cache_, queue_);
      evictions_->revalue(merges_->changed(), cache_, queue_);
    }
    ++next_position_;
    record.output = query_->outputs.download("output", queue_.stream());
    if (evictions_) record.evicted = evictions_->evicted(queue_);
    if (merges) {
      StepMerges merged = merges_->records(record.evicted, queue_);
      record.merged_into = std::move(merged.merged_into);
      if (!record.rebuilt) record.merges = std::move(merged.merges);
    }
    return record;
  }

 private:
  void begin(const LayerView& layer, const Policy& policy) {
    queue_.begin();
    shape_ = layer.shape;
    merge_rules_ = kvbound::rules_of(policy.merge);
    policy_ = policy;
    rules_ = kvbound::rules_of(policy.host, layer.prompt_tokens(), 0);
    next_position_ = layer.prompt_tokens();
    full_cache_.reset();
    if (layer_) {
      require_equal("tokens of the layer", layer.prompt_tokens(), "tokens of the session's layer",
                    layer_->view().prompt_tokens());
      return;
    }
    layer_.emplace(layer, queue_);
    known_.emplace(layer_->view(), queue_);
    step_.emplace(shape_);
  }

  // Fills the cache with the selection that the step's queries alone make among all entries so far, and merges the others
  // into it. Running scores start at 0.
  void rebuild(DeviceTensor<const T> queries, StepRecord& record) {
    const DeviceLayer<T> layer = full_cache_->layer(queries);
    const int64_t entered = layer.prompt_tokens() - layer_->view().prompt_tokens();
    const HostRules host = rebuild_rules(policy_.host, layer.prompt_tokens(), entered);
    std::vector<int64_t> budgets;
    for (const int64_t budget : budgets_) budgets.push_back(rebuild_budget(host, budget, entered));
    LayerScores<T> known(layer, queue_);
    const Ranking ranking = rank(policy_, host, known, queue_);
    KeptEntries kept(budgets, LayerCache<T>::capacity_for(std::ranges::max(budgets), host.evicts),
                     queue_.stream());
    PromptRecord chosen = select_prompt(policy_, ranking, known, queue_, kept);
    record.merges = fill(layer, nullptr, kept, chosen.kept, nullptr);
    record.stage_one = std::move(chosen.stage_one);
    if (host.evicts) evictions_.emplace(policy_, budgets_, nullptr, cache_, *known_, queue_);
    synchronise(queue_.stream());  // the scores are released
  }

  // Fills the cache with the kept entries and, if the policy merges, merges the others into them.
  //
  // known  the prompt's scores; null at a rebuild
  // roots  with order=merge-first
  std::vector<HeadMerge> fill(const DeviceLayer<T>& layer, LayerScores<T>* known, KeptEntries& kept,
                              const std::vector<std::vector<int64_t>>& positions, PromptRoots* roots) {
    cache_.fill(layer, kept, !rules_.evicts, merge_rules_.votes, queue_);
    merges_.reset();
    if (!merge_rules_.merges) return {};
    merges_ = make_merges<T>(policy_.merge, layer, rules_.evicts);
    return merges_->compress({layer, known, positions, roots}, cache_, queue_);
  }

  Queue queue_;
  LayerShape shape_;
  HostRules rules_;
  Policy policy_;
  MergeRules merge_rules_;
  std::vector<int64_t> budgets_;  // [kv_heads], after allocation
  int64_t next_position_ = 0;
  std::optional<UploadedLayer<T>> layer_;
  std::optional<LayerScores<T>> known_;
  LayerCache<T> cache_;
  std::optional<StepInputs<T>> step_;
  std::optional<ScoredQuery<T>> query_;     // the step's
  std::optional<Evictions<T>> evictions_;   // for hosts that evict
  std::unique_ptr<Merges<T>> merges_;       // for policies that merge
  std::optional<FullCache<T>> full_cache_;  // for policies that rebuild
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
          .change_scores =
              change_score_arithmetic(std::max(prompt_tokens, entries), shape.head_dim, shape.model_dim),
          .projected_value_norms =
              norms_arithmetic(shape.head_dim, shape.model_dim, norms_kernel(storage, shape.head_dim)),
          .attention = attention_arithmetic(entries, shape.head_dim)};
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
