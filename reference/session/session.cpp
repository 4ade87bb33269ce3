#include "session.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include <kvbound/reference/core/call_site.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/reference/eviction/random.hpp>
#include <kvbound/reference/eviction/streaming_llm.hpp>

#include "full_cache.hpp"
#include "head_budgets.hpp"
#include "head_stepper.hpp"
#include "prompt_merging.hpp"
#include "prompt_selection.hpp"
#include "ranking.hpp"

namespace kvbound::reference {
namespace {

using Clock = std::chrono::steady_clock;

// What one KV head's decode steps took.
struct DecodeTimes {
  Clock::duration attention{}, eviction{};
};

class ReferenceSession final : public Session {
 public:
  explicit ReferenceSession(OperationTimes* times) : times_(times), known_(times) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    begin(layer, policy, budgets);
    PromptRecord record;
    Ranking ranking;
    if (ranks(policy.host)) {
      ranking = rank(layer, policy, known_);
      budgets_ = head_budgets(layer, policy, ranking, budgets, known_);
      record = select_prompt(layer, policy, ranking, budgets_, known_, times_);
    } else {
      record.kept = kept_unranked();
    }
    steppers_.clear();
    steppers_.resize(static_cast<size_t>(shape_.kv_heads));
    for_each_head([&](int64_t g) { steppers_[g].emplace(layer, policy, g, budgets_[g]); });
    fill(layer, ranking, rules_.order,
         rules_.averages() ? &known_.predicted(layer, *rules_.prediction) : nullptr, record);
    if (evicts(policy.host)) begin_evicting(layer, ranking.head_scores, record);
    return record;
  }

  StepRecord step(const StepView& view) override { return std::move(steps({&view, 1}).front()); }

  std::vector<StepRecord> steps(std::span<const StepView> views) override {
    for (const StepView& view : views) require_consistent(view, shape_);
    std::vector<StepRecord> records(views.size());
    for (size_t first = 0; first < views.size();) {
      size_t count = 1;
      if (full_cache_) {
        full_cache_->append(views[first]);
        if (rules_.rebuilds_at(steps_taken())) rebuild(records[first]);
      } else {
        count = views.size();
      }
      decode(views.subspan(first, count), std::span(records).subspan(first, count));
      next_position_ += static_cast<int64_t>(count);
      first += count;
    }
    return records;
  }

 private:
  void begin(const LayerView& layer, const Policy& policy, std::span<const int64_t> budgets) {
    layer_ = layer;
    policy_ = policy;
    rules_ = rules_of(policy.merge);
    shape_ = layer.shape;
    budgets_.assign(budgets.begin(), budgets.end());
    next_position_ = layer.prompt_tokens();
    full_cache_.reset();
    if (rules_.period) full_cache_.emplace(layer);
  }

  int64_t steps_taken() const { return next_position_ - layer_.prompt_tokens(); }
  HeadStepper& stepper(int64_t g) { return *steppers_[g]; }
  template <class Work>
  void for_each_head(const Work& work, CallSite where = CallSite::current()) const {
    parallel_for(shape_.kv_heads, work, where);
  }

  // Whether code of the caller's chooses evicted entries: it is called by this thread alone, in one order.
  bool has_method() const {
    const auto given = kvbound::rules_of(policy_.host, 0, 0).given;
    return given && given->evict;
  }

  // What a host that ranks nothing keeps of the prompt.
  std::vector<std::vector<int64_t>> kept_unranked() const {
    const int64_t tokens = layer_.prompt_tokens();
    if (const auto given = kvbound::rules_of(policy_.host, tokens, 0).given) return given->kept;
    std::vector<std::vector<int64_t>> kept;
    for (const int64_t budget : budgets_) {
      const HostRules rules = kvbound::rules_of(policy_.host, tokens, budget);
      kept.push_back(rules.seed ? sinks_drawn_and_newest(tokens, rules.sinks, rules.recent, budget,
                                                         {*rules.seed, layer_.index, std::ssize(kept)})
                                : sinks_and_newest(tokens, rules.sinks, budget));
    }
    return kept;
  }

  // Fills the caches with the kept entries and, if the policy merges, merges the evicted entries into them.
  //
  // record    holds the kept positions, which merge-first replaces
  // averages  predicted scores after the prompt, [kv_heads]; null: the last query's own scores are used
  void fill(const LayerView& layer, const Ranking& ranking, MergeOrder order,
            const std::vector<ScoreEma>* averages, PromptRecord& record) {
    std::vector<MergeTargets> targets(record.kept.size());
    if (rules_.target) {
      timed(times_, "merge_targets",
            [&] { targets = merge_targets(layer, *rules_.target, order, ranking, budgets_, record.kept); });
    } else {
      std::ranges::transform(record.kept, targets.begin(), [](const auto& kept) {
        return MergeTargets{kept, {}};
      });
    }
    timed(times_, "compaction",
          [&] { for_each_head([&](int64_t g) { stepper(g).fill(layer, record.kept[g]); }); });
    if (!rules_.merges) return;
    record.merges.resize(targets.size());
    timed(times_, "merging", [&] {
      for_each_head([&](int64_t g) {
        const int64_t index = g;
        record.merges[index] =
            stepper(g).merge(layer, std::move(targets[index]), averages ? &(*averages)[index] : nullptr);
      });
    });
  }

  // head_scores  [query_heads, m]: the running scores with which decoding begins
  void begin_evicting(const LayerView& layer, MatrixView head_scores, const PromptRecord& record) {
    const MatrixView norms =
        record.projected_value_norms ? record.projected_value_norms->view() : MatrixView();
    timed(times_, "compaction", [&] {
      for_each_head([&](int64_t g) {
        stepper(g).begin_evicting(layer, shape_.group_rows(head_scores, g), shape_.group_rows(norms, g));
      });
    });
  }

  // Fills the caches with the selection that the step's queries
  // alone make among all entries so far. Running scores start at 0.
  void rebuild(StepRecord& record) {
    const LayerView layer = full_cache_->layer();
    const int64_t entered = steps_taken() + 1;
    const HostRules host = rebuild_rules(policy_.host, layer.prompt_tokens(), entered);
    std::vector<int64_t> budgets;
    for (const int64_t budget : budgets_) budgets.push_back(rebuild_budget(host, budget, entered));
    LayerScores known(times_);
    const Ranking ranking = rank(layer, policy_, host, known);
    PromptRecord chosen = select_prompt(layer, policy_, ranking, budgets, known, times_);
    fill(layer, ranking, MergeOrder::evict_first, nullptr, chosen);
    if (host.evicts) begin_evicting(layer, Matrix(shape_.query_heads, layer.prompt_tokens()), chosen);
    record.rebuilt = true;
    record.merges = std::move(chosen.merges);
    record.stage_one = std::move(chosen.stage_one);
  }

  // Takes successive steps, of which only the first may have rebuilt the cache. A KV head's steps need
  // nothing of other heads, so that each head takes all of them separately.
  void decode(std::span<const StepView> views, std::span<StepRecord> records) {
    for (StepRecord& record : records) begin_step(record);
    std::vector<DecodeTimes> spent(shape_.kv_heads);
    const auto start = Clock::now();
    const auto decode_head = [&](int64_t g) {
      for (size_t t = 0; t < views.size(); ++t) {
        const auto step_start = Clock::now();
        attend(views[t], g, next_position_ + static_cast<int64_t>(t), records[t]);
        const auto attended = Clock::now();
        if (evicts(policy_.host)) evict(views[t], g, records[t]);
        spent[g].attention += attended - step_start;
        spent[g].eviction += Clock::now() - attended;
      }
    };
    if (has_method()) {
      for (int64_t g = 0; g < shape_.kv_heads; ++g) decode_head(g);
    } else {
      for_each_head(decode_head);
    }
    if (times_) add_times(spent, Clock::now() - start, std::ssize(views));
  }

  void begin_step(StepRecord& record) const {
    const int64_t heads = shape_.kv_heads;
    record.output = Matrix(shape_.query_heads, shape_.head_dim);
    if (!evicts(policy_.host)) return;
    record.evicted.assign(heads, kNotEvicted);
    if (rules_.merges) record.merged_into.assign(heads, kNothingEvicted);
    if (rules_.merges && !record.rebuilt) record.merges.resize(heads);
  }

  void attend(const StepView& view, int64_t g, int64_t position, StepRecord& record) {
    if (!record.rebuilt) stepper(g).enter(position, view.keys.row(g), view.values.row(g));
    const Matrix output = stepper(g).attend(shape_.group_rows(view.queries, g));
    for (int64_t i = 0; i < output.rows(); ++i) {
      std::ranges::copy(output.row(i), record.output.row(g * shape_.group_size() + i).begin());
    }
  }

  void evict(const StepView& view, int64_t g, StepRecord& record) {
    const std::optional<int64_t> entry = stepper(g).own_choice();
    if (!entry) return;
    EvictedEntry evicted = stepper(g).evict(*entry, shape_.group_rows(view.queries, g));
    record.evicted[g] = evicted.position;
    if (!rules_.merges) return;
    record.merged_into[g] = evicted.merged_into;
    record.merges[g] = std::move(evicted.merge);
  }

  // Divides the wall time of all heads' steps in the proportion in which the heads spent it.
  void add_times(const std::vector<DecodeTimes>& spent, Clock::duration wall, int64_t steps) {
    const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
    double attention = 0, eviction = 0;
    for (const DecodeTimes& head : spent) {
      attention += seconds(head.attention);
      eviction += seconds(head.eviction);
    }
    const double share = seconds(wall) / (attention + eviction);
    times_->add("attention", attention * share, steps);
    if (evicts(policy_.host)) times_->add("eviction", eviction * share, steps);
  }

  OperationTimes* times_;
  LayerScores known_;  // cached scores of the layer's prompt
  LayerView layer_;
  LayerShape shape_;
  Policy policy_;
  MergeRules rules_;
  std::vector<int64_t> budgets_;  // [kv_heads], after allocation
  int64_t next_position_ = 0;
  std::optional<FullCache> full_cache_;               // for policies that rebuild
  std::vector<std::optional<HeadStepper>> steppers_;  // [kv_heads]
};

}  // namespace

std::unique_ptr<Session> make_session(OperationTimes* times) {
  return std::make_unique<ReferenceSession>(times);
}

}  // namespace kvbound::reference
