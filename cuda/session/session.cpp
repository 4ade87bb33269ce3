#include "session.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
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
#include "step_inputs.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

template <Storage T>
class DeviceSession final : public Session {
 public:
  DeviceSession(OperationTimes* times, Stream stream) : queue_(times, stream) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    require_range("head_dim", layer.shape.head_dim, 1, kMostHeadDim);
    const PoolScope scope(queue_.pool());
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
      select_prompt(policy, *ranking, *known_, queue_, kept, record);
    } else {
      keep_unranked(policy.host, layer.prompt_tokens(), layer.index, kept, record, queue_.stream());
    }
    budgets_ = kept.budgets;
    std::optional<PromptRoots> roots;
    if (merge_rules_.order == MergeOrder::merge_first) {
      roots.emplace(*ranking, *merge_rules_.target, *known_, queue_, kept);
      record.kept = roots->kept();
      for (size_t g = 0; g < own.size(); ++g) own[g] = std::ssize(record.kept[g]);
    }
    fill({layer_->view(), &*known_, own, record.kept, roots ? &*roots : nullptr}, kept, record.merges);
    evictions_.reset();
    if (rules_.evicts) {
      evictions_.emplace(policy, budgets_, ranking ? &ranking->head_scores : nullptr, cache_, *known_,
                         queue_);
    }
    query_.emplace(shape_, rules_.evicts ? cache_.capacity() : 0);
    if (merge_rules_.period) full_cache_.emplace(layer_->view(), queue_);
    queue_.finish();
    rehearses_ = full_cache_.has_value();
    return record;
  }

  StepRecord step(const StepView& view) override { return std::move(steps({&view, 1}).front()); }

  std::vector<StepRecord> steps(std::span<const StepView> views) override {
    for (const StepView& view : views) require_consistent(view, shape_);
    const auto count = std::ssize(views);
    if (kvbound::rules_of(policy_.selection).in_decoding || merge_rules_.period) {
      // A rebuild selects from all entries.
      const int64_t most = merge_rules_.period ? kMostScores : kMostPositions;
      require_range("position of the last step", next_position_ + count - 1, 0, most - 1);
    }
    const PoolScope scope(queue_.pool());
    queue_.drop();  // what a call that failed has left refers to its records
    if (cache_.make_room(count, queue_)) recorded_step_.forget();
    if (full_cache_) full_cache_->make_room(count, queue_);
    std::vector<StepRecord> records(count);
    for (int64_t first = 0; first < count; first += kStepsAtOnce) {
      const int64_t steps = std::min(kStepsAtOnce, count - first);
      step_->upload(views.subspan(first, steps), next_position_, merge_rules_.prediction, queue_.stream());
      for (int64_t t = 0; t < steps; ++t) {
        step_->select(t, queue_.stream());
        if (std::exchange(rehearses_, false)) rehearse_rebuild();
        take_step(records[first + t]);
        ++next_position_;
      }
      queue_.finish_part();
      if (first + steps < count) queue_.end_part();
      if (queue_.pool().staged() > kMostAwaited) queue_.finish();
    }
    queue_.finish();
    return records;
  }

 private:
  // Steps whose inputs are uploaded, and whose results handed over, while the device takes as many others.
  static constexpr int64_t kStepsAtOnce = 8;
  // Bytes of page-locked memory that steps taken together may use before they are waited for.
  static constexpr int64_t kMostAwaited = int64_t{64} << 20;

  // Queues the current step.
  void take_step(StepRecord& record) {
    if (full_cache_) {
      full_cache_->append(step_->keys(), step_->values(), step_->position(), queue_);
    }
    record.rebuilt = merge_rules_.rebuilds_at(next_position_ - layer_->view().prompt_tokens());
    if (record.rebuilt) rebuild(full_cache_->layer(next_position_ + 1, step_->queries()), record);
    Readback& reads = read_back(record);
    if (record.rebuilt) {
      attend();
      reads.pack(packed_, queue_.stream());
    } else {
      queue_.repeat(recorded_step_, [&] {
        enter();
        attend();
        reads.pack(packed_, queue_.stream());
      });
    }
    reads.transfer(packed_, queue_.pool());
  }

  // Asks for a step's results.
  Readback& read_back(StepRecord& record) {
    Readback& reads = queue_.read_back();
    reads.then([&record, output = reads.of(query_->outputs)](const Arrived& arrived) {
      record.output = arrived.matrix(output, "output");
    });
    if (evictions_) {
      queue_.require_numbers(reads, "score");
      evictions_->record(reads, record);
    }
    if (merges()) merges_->record(reads, record);
    return reads;
  }

  // Whether entries merge during decoding.
  bool merges() const { return merges_ != nullptr && evictions_.has_value(); }

  void enter() {
    cache_.append(step_->keys(), step_->values(), step_->position(),
                  merges() ? merges_->key_norms() : nullptr, queue_);
  }

  // Queues the attention of the current step's queries, and what follows from it.
  void attend() {
    queue_.run("attention", [&] {
      query_->attend(step_->queries(), cache_.view(), layer_->view().scale,
                     evictions_ ? evictions_->change() : std::nullopt, queue_);
      if (evictions_) evictions_->score(*step_, cache_, *query_, queue_);
      if (merges()) merges_->observe(*step_, *query_, cache_, queue_);
    });
    if (evictions_) queue_.run("eviction", [&] { evictions_->evict(cache_, step_->position(), queue_); });
    if (!merges()) return;
    merges_->merge(*step_, *query_, cache_, queue_);
    evictions_->revalue(merges_->changed(), cache_, queue_);
  }

  void begin(const LayerView& layer, const Policy& policy) {
    queue_.begin();
    shape_ = layer.shape;
    merge_rules_ = kvbound::rules_of(policy.merge);
    policy_ = policy;
    rules_ = kvbound::rules_of(policy.host, layer.prompt_tokens(), 0);
    next_position_ = layer.prompt_tokens();
    full_cache_.reset();
    recorded_step_.forget();
    queue_.pool().expect_usual_growth();
    if (step_) {
      require_equal("tokens of the layer", layer.prompt_tokens(), "tokens of the session's layer",
                    layer_->view().prompt_tokens());
    } else {
      layer_.emplace(layer, queue_);
      known_.emplace(layer_->view(), queue_);
      step_.emplace(shape_);
    }
    if (merge_rules_.period) {  // whose temporary memory grows with the entries so far
      const auto tokens = static_cast<double>(layer.prompt_tokens());
      queue_.pool().reserve_growth(1 + static_cast<double>(LayerCache<T>::kRoom) / tokens);
    }
  }

  // Takes the memory of rebuilds into the pool: a step that begins with one, of the prompt's entries, of
  // which nothing is kept or read.
  void rehearse_rebuild() {
    LayerCache<T> cache = std::exchange(cache_, {});
    std::optional<Evictions<T>> evictions = std::exchange(evictions_, {});
    std::unique_ptr<Merges<T>> merges = std::exchange(merges_, {});
    StepRecord unread;
    rebuild(full_cache_->layer(next_position_, step_->queries()), unread);
    Readback& reads = read_back(unread);
    attend();
    reads.pack(packed_, queue_.stream());
    cache_ = std::move(cache);
    evictions_ = std::move(evictions);
    merges_ = std::move(merges);
    queue_.begin();
    queue_.pool().settle();
  }

  // Fills the cache with the selection that a layer's queries make among its entries, which are all so far,
  // and merges the others into it. Running scores start at 0.
  void rebuild(const DeviceLayer<T>& layer, StepRecord& record) {
    recorded_step_.forget();
    evictions_.reset();
    merges_.reset();
    const int64_t entered = layer.prompt_tokens() - layer_->view().prompt_tokens();
    const HostRules host = rebuild_rules(policy_.host, layer.prompt_tokens(), entered);
    std::vector<int64_t> budgets;
    for (const int64_t budget : budgets_) budgets.push_back(rebuild_budget(host, budget, entered));
    LayerScores<T> known(layer, queue_);
    const Ranking ranking = rank(policy_, host, known, queue_);
    KeptEntries kept(budgets, LayerCache<T>::capacity_for(std::ranges::max(budgets), host.evicts),
                     queue_.stream());
    const auto chosen = std::make_shared<PromptRecord>();
    select_prompt(policy_, ranking, known, queue_, kept, *chosen);
    queue_.read_back().then([&record, chosen](const Arrived&) { record.stage_one = chosen->stage_one; });
    fill({layer, nullptr, budgets, chosen->kept, nullptr}, kept, record.merges);
    if (host.evicts) evictions_.emplace(policy_, budgets_, nullptr, cache_, *known_, queue_);
  }

  // Fills the cache with the kept entries and, if the policy merges, merges the others into them.
  void fill(const SelectedLayer<T>& selected, KeptEntries& kept, std::vector<HeadMerge>& records) {
    cache_.fill(selected.layer, kept, !rules_.evicts, merge_rules_.votes, queue_);
    merges_.reset();
    if (!merge_rules_.merges) return;
    merges_ = make_merges<T>(policy_.merge, selected.layer, rules_.evicts);
    merges_->compress(selected, cache_, queue_, records);
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
  Buffer<std::byte> packed_;                // a step's results
  Recording recorded_step_;                 // without a rebuild
  bool rehearses_ = false;                  // before the next step
};

[[noreturn]] void refuse(Dtype storage) {
  throw InvalidPolicy("a device stores a cache as F32, F16 or BF16, not as " + std::string(name(storage)));
}

template <Storage T>
SessionArithmetic arithmetic_of(const LayerShape& shape, int64_t prompt_tokens, int64_t entries) {
  return {.window_attention = window_arithmetic<T>(prompt_tokens, shape.head_dim),
          .change_scores = change_score_arithmetic<T>(std::max(prompt_tokens, entries), shape.head_dim),
          .projected_value_norms =
              norms_arithmetic(shape.head_dim, shape.model_dim, chosen_norms_kernel<T>(shape.head_dim)),
          .projected_value_norms_l2 = norms_l2_arithmetic<T>(shape.head_dim, shape.model_dim),
          .attention = attention_arithmetic<T>(entries, shape.head_dim),
          .nearest_keys = nearest_keys_arithmetic(shape.head_dim, chosen_search_kernel<T>(shape.head_dim)),
          .nearest_key = nearest_key_arithmetic<T>(shape.head_dim)};
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
  if (storage == Dtype::f32) return arithmetic_of<float>(shape, prompt_tokens, entries);
  if (storage == Dtype::f16) return arithmetic_of<Float16>(shape, prompt_tokens, entries);
  if (storage == Dtype::bf16) return arithmetic_of<Bfloat16>(shape, prompt_tokens, entries);
  refuse(storage);
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
