#include "session.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
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
#include "joined_records.hpp"
#include "joined_rows.hpp"
#include "layer_cache.hpp"
#include "layer_scores.hpp"
#include "merges.hpp"
#include "page_rules.hpp"
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
  DeviceSession(OperationTimes* times, Stream stream, int64_t page_size)
      : times_(times), queue_(times, stream), page_size_(page_size) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    require_range("head_dim", layer.shape.head_dim, 1, kMostHeadDim);
    if (page_size_ != 0) require_pageable(policy, page_size_);
    const PoolScope scope(queue_.pool());
    begin(layer, policy);
    std::vector<int64_t> own(budgets.begin(), budgets.end());
    std::optional<Ranking> ranking;
    if (rules_.ranks()) {
      ranking = rank(policy, rules_, *known_, queue_);
      own = head_budgets(policy, *ranking, budgets, *known_, queue_);
    }
    KeptEntries kept(own, LayerCache<T>::capacity_for(std::ranges::max(own), rules_.evicts, page_size_),
                     queue_.stream());
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
    is_complete_ = true;
    return record;
  }

  StepRecord step(const StepView& view) override { return std::move(steps({&view, 1}).front()); }

  std::vector<StepRecord> steps(std::span<const StepView> views) override {
    require_alone();
    require_complete();
    require_possible(views);
    return take({&views, 1});
  }

  void take_together(std::span<SessionSteps> all) override {
    std::vector<DeviceSession*> parts;
    std::vector<std::span<const StepView>> views;
    for (SessionSteps& each : all) {
      auto* const session = dynamic_cast<DeviceSession*>(each.session);
      if (!is_complete_ || !session || !session->is_complete_ || !can_join(*session) ||
          each.views.size() != all.front().views.size())
        break;
      parts.push_back(session);
      views.emplace_back(each.views);
      each.records.clear();
    }
    const bool is_one_by_one = parts.size() < all.size() || all.size() == 1 || views.front().empty();
    if (is_one_by_one) return Session::take_together(all);
    const bool goes_on = joined_ && joined_of_ == parts && std::ranges::all_of(parts, [&](const auto* part) {
                           return part->joined_in_ == joined_.get();
                         });
    try {
      for (size_t s = 0; s < parts.size(); ++s) parts[s]->require_possible(views[s]);
      if (!goes_on) join(parts);
      divide(joined_->take(views), all);
    } catch (const Error&) {
      if (goes_on) throw;
      return Session::take_together(all);  // which finds the session that failed
    }
    for (DeviceSession* part : parts) {
      part->joined_in_ = joined_.get();
      part->next_positions_.front() += std::ssize(views.front());
    }
  }

 private:
  void require_alone() const {
    if (joined_in_) throw ShapeMismatch("a session that has taken steps with others goes on with them alone");
  }
  void require_complete() const {
    if (is_complete_) return;
    throw ShapeMismatch(
        "a session that is not compressed, or whose last call failed, takes no steps: compress");
  }
  // Throws what `steps` throws before anything is queued.
  void require_possible(std::span<const StepView> views) const {
    for (const StepView& view : views) require_consistent(view, shape_);
    if (kvbound::rules_of(policy_.selection).in_decoding || merge_rules_.period) {
      // A rebuild selects from all entries.
      const int64_t most = merge_rules_.period ? kMostScores : kMostPositions;
      require_range("position of the last step", next_positions_.front() + std::ssize(views) - 1, 0,
                    most - 1);
    }
  }

  // Takes the steps of every segment.
  std::vector<StepRecord> take(std::span<const std::span<const StepView>> segments) {
    require_complete();
    is_complete_ = false;
    const auto count = std::ssize(segments.front());
    const PoolScope scope(queue_.pool());
    const bool grown = cache_.make_room(count, queue_);
    if ((full_cache_ && full_cache_->make_room(count, queue_)) || grown) forget_recorded();
    std::vector<StepRecord> records(count);
    int64_t part = 0;
    for (int64_t first = 0, steps = 0; first < count; first += steps) {
      steps = steps_at_once(count - first);
      std::vector<std::span<const StepView>> now;
      for (const std::span<const StepView> views : segments) now.push_back(views.subspan(first, steps));
      inputs_->upload(now, next_positions_, merge_rules_.prediction, queue_.stream());
      if (std::exchange(rehearses_, false)) rehearse_rebuild();
      take_steps(std::span(records).subspan(first, steps));
      for (int64_t& position : next_positions_) position += steps;
      part += steps;
      const bool is_last = first + steps == count;
      if (part < kStepsAtOnce && !is_last) continue;
      queue_.finish_part();
      if (!is_last) queue_.end_part();
      part = 0;
      if (queue_.pool().staged() > kMostAwaited) queue_.finish();
    }
    queue_.finish();
    is_complete_ = true;
    return records;
  }

  // Whether another session's steps can be taken by the same launches: decisions follow from the same rules,
  // and no cache is rebuilt.
  bool can_join(const DeviceSession& other) const {
    const auto of_decoding = [](const HostRules& rules) {
      return std::tuple(rules.evicts, rules.ranks(), rules.sinks, rules.recent, rules.fills_recent,
                        rules.step_update);
    };
    return times_ == other.times_ && page_size_ == other.page_size_ &&
           queue_.stream() == other.queue_.stream() && shape_ == other.shape_ &&
           layer_->view().scale == other.layer_->view().scale && policy_.score == other.policy_.score &&
           policy_.selection == other.policy_.selection && policy_.merge == other.policy_.merge &&
           of_decoding(rules_) == of_decoding(other.rules_) && !merge_rules_.period;
  }

  // Makes a session of several.
  void join(const std::vector<DeviceSession*>& parts) {
    for (const DeviceSession* part : parts) part->require_alone();
    joined_ = std::make_unique<DeviceSession>(times_, queue_.stream(), page_size_);
    joined_->queue_.run("join", [&] { joined_->begin_joined(parts); });
    joined_of_ = parts;
  }

  // Copies what sessions have, one behind the other.
  void begin_joined(std::span<DeviceSession* const> parts) {
    const PoolScope scope(queue_.pool());
    DeviceSession& first = *parts.front();
    shape_ = joined(first.shape_, std::ssize(parts));
    policy_ = first.policy_;
    rules_ = first.rules_;
    merge_rules_ = first.merge_rules_;
    std::vector<UploadedLayer<T>*> layers;
    std::vector<LayerScores<T>*> scores;
    std::vector<LayerCache<T>*> caches;
    std::vector<Evictions<T>*> evictions;
    std::vector<Merges<T>*> merges;
    for (DeviceSession* part : parts) {
      next_positions_.push_back(part->next_positions_.front());
      layers.push_back(&*part->layer_);
      scores.push_back(&*part->known_);
      caches.push_back(&part->cache_);
      if (first.evictions_) evictions.push_back(&*part->evictions_);
      if (first.merges()) merges.push_back(&*part->merges_);
    }
    layer_.emplace(layers, queue_);
    known_.emplace(scores, layer_->view(), queue_);
    cache_ = LayerCache<T>(caches, queue_);
    if (first.evictions_) evictions_.emplace(evictions, cache_, *known_, queue_);
    if (first.merges()) merges_ = first.merges_->joined(merges, cache_.capacity(), queue_);
    query_.emplace(shape_, rules_.evicts ? cache_.capacity() : 0);
    inputs_.emplace(shape_, kStepsAtOnce);
    is_complete_ = true;
  }

  // Steps whose inputs are uploaded, and whose results handed over, while the device takes as many others.
  static constexpr int64_t kStepsAtOnce = 16;
  // Bytes of page-locked memory that steps taken together may use before they are waited for.
  static constexpr int64_t kMostAwaited = int64_t{64} << 20;

  // What is read back of a step; its output and the evicted positions are written where they are read from.
  struct StepReads {
    Readback* all;
    Read<float> output;
    Read<int64_t> evicted;
  };

  bool rebuilds(int64_t ahead) const {
    return merge_rules_.rebuilds_at(next_positions_.front() + ahead - layer_->view().prompt_tokens());
  }
  // How many of the next steps are queued as one: a step that rebuilds is alone.
  int64_t steps_at_once(int64_t most) const {
    if (rebuilds(0)) return 1;
    int64_t steps = 1;
    while (steps < std::min(most, kStepsAtOnce) && !rebuilds(steps)) ++steps;
    return steps;
  }

  // Queues steps, whose inputs have been uploaded.
  void take_steps(std::span<StepRecord> records) {
    const auto count = std::ssize(records);
    StepRecord& first = records.front();
    first.rebuilt = rebuilds(0);
    if (first.rebuilt) {
      const StepInput<T> step = (*inputs_)[0];
      full_cache_->append(step, queue_);
      rebuild(full_cache_->layer(next_positions_.front() + 1, step.queries()), first);
    }
    Readback& flags = queue_.read_back();
    std::vector<StepReads> reads;
    std::vector<Readback*> of_steps;
    for (StepRecord& record : records) of_steps.push_back(reads.emplace_back(read_back(record)).all);
    if (queue_.reserve_results(kStepsAtOnce, of_steps.front()->bytes())) forget_recorded();
    if (first.rebuilt) {
      attend(0, nullptr, reads.front());
      // Steps are the same as before if all that a rebuild has made is where it was, and as large: what else
      // they depend on follows from the policy and the prompt.
      const size_t before = std::exchange(layout_, queue_.pool().layout());
      if (before != layout_) forget_recorded();
    } else {
      queue_.repeat(recorded_[count - 1], [&] {
        for (int64_t t = 0; t < count; ++t) take_step(t, t + 1 < count, reads[t]);
      });
    }
    queue_.transfer_results(flags, "score", of_steps);
  }

  // Queues the t-th of steps, none of which rebuilds.
  //
  // is_followed  whether the next one's inputs have been uploaded, too
  void take_step(int64_t t, bool is_followed, const StepReads& reads) {
    const StepInput<T> step = (*inputs_)[t];
    if (full_cache_) full_cache_->append(step, queue_);
    if (t == 0 || !appends_ahead()) cache_.append(step, merges() ? merges_->key_norms() : nullptr, queue_);
    std::optional<StepInput<T>> next;
    if (is_followed && appends_ahead()) next = (*inputs_)[t + 1];
    attend(t, next ? &*next : nullptr, reads);
  }

  // Asks for a step's results.
  StepReads read_back(StepRecord& record) {
    Readback& reads = queue_.read_back();
    const auto output = reads.place<float>(shape_.query_heads * shape_.head_dim);
    reads.then([&record, output, shape = shape_](const Arrived& arrived) {
      record.output = arrived.matrix({output, shape.query_heads, shape.head_dim}, "output");
    });
    Read<int64_t> evicted;
    if (evictions_) {
      evicted = reads.place<int64_t>(shape_.kv_heads);
      reads.then([&record, evicted](const Arrived& arrived) {
        record.evicted.assign(arrived[evicted].begin(), arrived[evicted].end());
      });
    }
    if (merges()) merges_->record(reads, record);
    return {&reads, output, evicted};
  }

  // Whether entries merge during decoding.
  bool merges() const { return merges_ != nullptr && evictions_.has_value(); }

  // Whether an eviction appends the next step's entry in the place of the evicted one, which merges would
  // still read.
  bool appends_ahead() const { return evictions_.has_value() && !merges(); }

  // Queues the attention of the t-th step's queries, and what follows from it.
  //
  // next  the step whose entry the eviction appends; null: none
  void attend(int64_t t, const StepInput<T>* next, const StepReads& reads) {
    const StepInput<T> step = (*inputs_)[t];
    queue_.run("attention", [&] {
      query_->attend(step.queries(), cache_.view(), layer_->view().scale,
                     evictions_ ? evictions_->change() : std::nullopt, queue_.result(t, reads.output),
                     queue_);
      if (evictions_) evictions_->score(step, cache_, *query_, queue_);
      if (merges()) merges_->observe(step, *query_, cache_, queue_);
    });
    if (evictions_) {
      queue_.run("eviction",
                 [&] { evictions_->evict(step, next, cache_, queue_.result(t, reads.evicted), queue_); });
    }
    if (merges()) {
      merges_->merge(step, *query_, cache_, queue_);
      evictions_->revalue(merges_->changed(), cache_, queue_);
    }
    reads.all->pack(queue_.results(t), queue_.stream());
  }

  void forget_recorded() {
    for (Recording& recording : recorded_) recording.forget();
  }

  void begin(const LayerView& layer, const Policy& policy) {
    queue_.begin();
    is_complete_ = false;
    shape_ = layer.shape;
    merge_rules_ = kvbound::rules_of(policy.merge);
    policy_ = policy;
    rules_ = kvbound::rules_of(policy.host, layer.prompt_tokens(), 0);
    next_positions_ = {layer.prompt_tokens()};
    joined_in_ = nullptr;
    joined_.reset();
    joined_of_.clear();
    full_cache_.reset();
    layout_ = 0;
    forget_recorded();
    queue_.pool().expect_usual_growth();
    if (inputs_) {
      require_equal("tokens of the layer", layer.prompt_tokens(), "tokens of the session's layer",
                    layer_->view().prompt_tokens());
    } else {
      layer_.emplace(layer, queue_);
      known_.emplace(layer_->view(), queue_);
      inputs_.emplace(shape_, kStepsAtOnce);
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
    rebuild(full_cache_->layer(next_positions_.front(), (*inputs_)[0].queries()), unread);
    const StepReads reads = read_back(unread);
    queue_.reserve_results(kStepsAtOnce, reads.all->bytes());
    attend(0, nullptr, reads);
    cache_ = std::move(cache);
    evictions_ = std::move(evictions);
    merges_ = std::move(merges);
    queue_.begin();
    queue_.pool().settle();
  }

  // Fills the cache with the selection that a layer's queries make among its entries, which are all so far,
  // and merges the others into it. Running scores start at 0.
  void rebuild(const DeviceLayer<T>& layer, StepRecord& record) {
    evictions_.reset();
    merges_.reset();
    cache_ = {};
    const int64_t entered = layer.prompt_tokens() - layer_->view().prompt_tokens();
    const HostRules host = rebuild_rules(policy_.host, layer.prompt_tokens(), entered);
    std::vector<int64_t> budgets;
    for (const int64_t budget : budgets_) budgets.push_back(rebuild_budget(host, budget, entered));
    LayerScores<T> known(layer, queue_);
    const Ranking ranking = rank(policy_, host, known, queue_);
    KeptEntries kept(budgets, LayerCache<T>::capacity_for(std::ranges::max(budgets), host.evicts, page_size_),
                     queue_.stream());
    const auto chosen = std::make_shared<PromptRecord>();
    select_prompt(policy_, ranking, known, queue_, kept, *chosen);
    queue_.read_back().then([&record, chosen](const Arrived&) { record.stage_one = chosen->stage_one; });
    fill({layer, nullptr, budgets, chosen->kept, nullptr}, kept, record.merges);
    if (host.evicts) evictions_.emplace(policy_, budgets_, nullptr, cache_, *known_, queue_);
  }

  // Fills the cache with the kept entries and, if the policy merges, merges the others into them.
  void fill(const SelectedLayer<T>& selected, KeptEntries& kept, std::vector<HeadMerge>& records) {
    cache_.fill(selected.layer, kept, !rules_.evicts, merge_rules_.votes, page_size_, queue_);
    merges_.reset();
    if (!merge_rules_.merges) return;
    merges_ = make_merges<T>(policy_.merge, selected.layer, rules_.evicts);
    merges_->compress(selected, cache_, queue_, records);
  }

  OperationTimes* times_;
  Queue queue_;
  int64_t page_size_;
  LayerShape shape_;  // of all segments: one, or those of the sessions that were joined
  HostRules rules_;
  Policy policy_;
  MergeRules merge_rules_;
  std::vector<int64_t> budgets_;         // [kv_heads], after allocation
  std::vector<int64_t> next_positions_;  // of each segment
  std::optional<UploadedLayer<T>> layer_;
  std::optional<LayerScores<T>> known_;
  LayerCache<T> cache_;
  std::optional<StepInputs<T>> inputs_;
  std::optional<ScoredQuery<T>> query_;           // the step's
  std::optional<Evictions<T>> evictions_;         // for hosts that evict
  std::unique_ptr<Merges<T>> merges_;             // for policies that merge
  std::optional<FullCache<T>> full_cache_;        // for policies that rebuild
  std::array<Recording, kStepsAtOnce> recorded_;  // of so many steps without a rebuild, less one
  size_t layout_ = 0;                             // of memory behind the last rebuild
  bool rehearses_ = false;                        // before the next step
  bool is_complete_ = false;                      // the last call has come to its end
  const DeviceSession* joined_in_ = nullptr;      // which takes its steps
  std::unique_ptr<DeviceSession> joined_;         // takes the steps of these sessions together
  std::vector<DeviceSession*> joined_of_;
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
          .projected_value_norms_l2 = norms_l2_arithmetic<T>(shape.head_dim),
          .attention = attention_arithmetic<T>(entries, shape.head_dim),
          .nearest_keys = nearest_keys_arithmetic(shape.head_dim, chosen_search_kernel<T>(shape.head_dim)),
          .nearest_key = nearest_key_arithmetic<T>(shape.head_dim)};
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD

namespace KVBOUND_CUDA_BUILD {

std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times, Stream stream,
                                      int64_t page_size) {
  if (storage == Dtype::f32) return std::make_unique<DeviceSession<float>>(times, stream, page_size);
  if (storage == Dtype::f16) return std::make_unique<DeviceSession<Float16>>(times, stream, page_size);
  if (storage == Dtype::bf16) return std::make_unique<DeviceSession<Bfloat16>>(times, stream, page_size);
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
