#include "session.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/reference/eviction/allocation.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/streaming_llm.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/reference/numerics/parallel.hpp>

#include "full_cache.hpp"
#include "head_cache.hpp"
#include "head_merging.hpp"
#include "prompt_selection.hpp"
#include "ranking.hpp"

namespace kvbound::reference {
namespace {

// How a policy's merging comes into the session.
struct MergePlan {
  std::optional<SimilarTarget> target;        // none: nobody merges, or with no one in particular
  std::optional<PredictedScores> prediction;  // of methods that predict
  std::optional<int64_t> period;              // steps after which the cache is rebuilt
  MergeOrder order = MergeOrder::evict_first;

  explicit MergePlan(const Merge& merge) : target(target_of(merge)), prediction(prediction_of(merge)) {
    if (const auto* keep_kv = std::get_if<KeepKv>(&merge)) {
      period = keep_kv->period;
      order = keep_kv->order;
    }
  }
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
    if (const auto* host = std::get_if<StreamingLlm>(&policy.host)) {
      for (const int64_t budget : budgets) {
        record.kept.push_back(sinks_and_newest(layer.prompt_tokens(), host->sinks, budget));
      }
    } else {
      ranking = rank(layer, policy, known_);
      allocate(ranking);
      record = select_prompt(layer, policy, ranking, budgets_, known_, times_);
    }
    std::vector<MergeTargets> targets = merge_targets(layer, ranking, plan_.order, record);
    const bool averaged = plan_.prediction && plan_.prediction->predict == Prediction::ema;
    fill_caches(layer, std::move(targets), averaged ? &known_.predicted(layer, *plan_.prediction) : nullptr,
                record);
    if (evicts(policy.host)) begin_evicting(layer, ranking.head_scores, record);
    return record;
  }

  StepRecord step(const StepView& view) override {
    require_consistent(view, shape_);
    StepRecord record;
    record.output = Matrix(shape_.query_heads, shape_.head_dim);
    if (full_cache_) full_cache_->append(view);
    record.rebuilt = plan_.period && (newcomers() + 1) % *plan_.period == 0;
    if (record.rebuilt) rebuild(record);
    timed(times_, "attention", [&] {
      parallel_for(shape_.kv_heads, [&](int64_t g) {
        if (!record.rebuilt) enter(view, g);
        attend(view, g, record.output);
      });
    });
    if (evicts(policy_.host)) timed(times_, "eviction", [&] { evict(view, record); });
    ++next_position_;
    return record;
  }

 private:
  void begin(const LayerView& layer, const Policy& policy, std::span<const int64_t> budgets) {
    layer_ = layer;
    policy_ = policy;
    plan_ = MergePlan(policy.merge);
    shape_ = layer.shape;
    budgets_.assign(budgets.begin(), budgets.end());
    next_position_ = layer.prompt_tokens();
    full_cache_.reset();
    if (plan_.period) full_cache_.emplace(layer);
  }

  // Decode steps that were taken.
  int64_t newcomers() const { return next_position_ - layer_.prompt_tokens(); }
  bool merges() const { return !std::holds_alternative<NoMerge>(policy_.merge); }

  MatrixView group(MatrixView rows, int64_t g) const {
    return rows.rows > 0 ? rows.middle_rows(g * shape_.group_size(), shape_.group_size()) : MatrixView();
  }

  // Shares the budgets out among the heads, if the policy says so: by attention, whatever it scores by.
  void allocate(const Ranking& ranking) {
    const auto* adakv = std::get_if<AdaKv>(&policy_.allocation);
    if (!adakv) return;
    Policy by_attention = policy_;
    by_attention.score = AttentionScore{};
    const Matrix scores =
        change_of(policy_.score) ? rank(layer_, by_attention, known_).scores : ranking.scores;
    budgets_ = adakv_budgets(*adakv, scores.view().middle_cols(ranking.first_candidate, ranking.candidates),
                             candidates_kept(ranking, budgets_));
    for (int64_t& budget : budgets_) budget += static_cast<int64_t>(ranking.always_kept.size());
  }

  // Who merges with whom, per KV head; where that comes before the selection, it says who is kept.
  std::vector<MergeTargets> merge_targets(const LayerView& layer, const Ranking& ranking, MergeOrder order,
                                          PromptRecord& record) {
    std::vector<MergeTargets> all;
    if (!plan_.target) {
      for (const std::vector<int64_t>& kept : record.kept) all.push_back({kept, {}});
      return all;
    }
    timed(times_, "merge_targets", [&] {
      for (int64_t g = 0; g < shape_.kv_heads; ++g) {
        std::vector<int64_t>& kept = record.kept[static_cast<size_t>(g)];
        if (order == MergeOrder::evict_first) {
          all.push_back(evict_first(layer.keys.slice(g), kept, *plan_.target));
          continue;
        }
        const int64_t candidates = candidates_kept(ranking, budgets_)[static_cast<size_t>(g)];
        all.push_back(merge_first(layer.keys.slice(g), ranking.first_candidate,
                                  ranking.candidate_scores(ranking.scores, g), ranking.always_kept,
                                  candidates, *plan_.target));
        kept = all.back().kept;
      }
    });
    return all;
  }

  // averages  after the prompt, [kv_heads]; null: the last query's own scores
  void fill_caches(const LayerView& layer, std::vector<MergeTargets> targets,
                   const std::vector<ScoreEma>* averages, PromptRecord& record) {
    evictions_.clear();
    mergings_.clear();
    caches_.assign(record.kept.size(), {});
    timed(times_, "compaction", [&] {
      parallel_for(shape_.kv_heads, [&](int64_t g) {
        for (const int64_t position : record.kept[static_cast<size_t>(g)]) {
          caches_[static_cast<size_t>(g)].append(position, layer.keys.slice(g).row(position),
                                                 layer.values.slice(g).row(position));
        }
      });
    });
    if (!merges()) return;
    for (int64_t g = 0; g < shape_.kv_heads; ++g) mergings_.emplace_back(policy_.merge, layer, g);
    record.merges.resize(targets.size());
    timed(times_, "merging", [&] {
      parallel_for(shape_.kv_heads, [&](int64_t g) {
        const auto index = static_cast<size_t>(g);
        record.merges[index] = mergings_[index].compress(
            layer, std::move(targets[index]), averages ? &(*averages)[index] : nullptr, caches_[index]);
      });
    });
  }

  // head_scores  [query_heads, m], as the host's scores are when decoding begins
  void begin_evicting(const LayerView& layer, const Matrix& head_scores, const PromptRecord& record) {
    std::vector<std::optional<Eviction>> evictions(caches_.size());
    timed(times_, "compaction", [&] {
      parallel_for(shape_.kv_heads, [&](int64_t g) {
        const auto index = static_cast<size_t>(g);
        evictions[index].emplace(layer, policy_, g, budgets_[index], group(head_scores, g),
                                 cache_norms(g, record), caches_[index]);
      });
    });
    for (std::optional<Eviction>& eviction : evictions) evictions_.push_back(*std::move(eviction));
  }

  // Projected value norms of a KV head's entries, [group_size, entries]; none unless stage two asks for them.
  Matrix cache_norms(int64_t g, const PromptRecord& record) const {
    const auto* critical = std::get_if<Critical>(&policy_.selection);
    if (!critical) return {};
    const HeadCache& cache = caches_[static_cast<size_t>(g)];
    Matrix norms(shape_.group_size(), cache.entries());
    for (int64_t i = 0; i < norms.rows(); ++i) {
      const int64_t h = g * shape_.group_size() + i;
      if (merges()) {
        std::ranges::copy(projected_value_norms(cache.values, layer_.head_projection(h), critical->norm),
                          norms.row(i).begin());
        continue;
      }
      for (int64_t j = 0; j < norms.cols(); ++j) {
        norms(i, j) = (*record.projected_value_norms)(h, cache.positions[static_cast<size_t>(j)]);
      }
    }
    return norms;
  }

  // A cache of who would be selected now of all that ever were, by the step's queries alone. Running scores start anew.
  void rebuild(StepRecord& record) {
    const LayerView layer = full_cache_->layer();
    const bool grows = !evicts(policy_.host);
    HostRules rules = rules_of(policy_.host, layer.prompt_tokens(), 0);
    rules.window = 1;
    std::vector<int64_t> budgets = budgets_;
    if (grows) {
      const int64_t came = newcomers() + 1;
      rules.recent += came;
      rules.scored -= came;
      for (int64_t& budget : budgets) budget += came;
    }
    LayerScores known(times_);
    const Ranking ranking = rank(layer, policy_, rules, known);
    PromptRecord chosen = select_prompt(layer, policy_, ranking, budgets, known, times_);
    std::vector<MergeTargets> targets = merge_targets(layer, ranking, MergeOrder::evict_first, chosen);
    fill_caches(layer, std::move(targets), nullptr, chosen);
    if (!grows) begin_evicting(layer, Matrix(shape_.query_heads, layer.prompt_tokens()), chosen);
    record.merges = std::move(chosen.merges);
    record.stage_one = std::move(chosen.stage_one);
  }

  // The step's entry comes into KV head g's cache.
  void enter(const StepView& view, int64_t g) {
    const auto index = static_cast<size_t>(g);
    HeadCache& cache = caches_[index];
    cache.append(next_position_, view.keys.row(g), view.values.row(g));
    if (evictions_.empty()) return;
    evictions_[index].enter(cache);
    if (merges()) mergings_[index].enter(cache);
  }

  // The outputs of KV head g's query heads; scores and predictions take in what they paid.
  void attend(const StepView& view, int64_t g, Matrix& outputs) {
    const auto index = static_cast<size_t>(g);
    const MatrixView queries = group(view.queries, g);
    const HeadCache& cache = caches_[index];
    const Matrix output = evictions_.empty()
                              ? attention(queries, cache.keys, cache.values, scale(), cache.votes).output
                              : evictions_[index].attend(queries, cache);
    for (int64_t i = 0; i < output.rows(); ++i) {
      std::ranges::copy(output.row(i), outputs.row(g * shape_.group_size() + i).begin());
    }
    if (merges() && !evictions_.empty()) mergings_[index].observe(queries, cache, next_position_ + 1);
  }

  // Whoever has to leaves, and merges if the policy does.
  void evict(const StepView& view, StepRecord& record) {
    record.left.assign(evictions_.size(), -1);
    if (merges()) record.merged_into.assign(evictions_.size(), -2);
    if (merges() && !record.rebuilt) record.merges.resize(evictions_.size());
    parallel_for(shape_.kv_heads, [&](int64_t g) {
      const auto index = static_cast<size_t>(g);
      HeadCache& cache = caches_[index];
      Eviction& eviction = evictions_[index];
      const std::optional<int64_t> leaving = eviction.who_leaves(cache, next_position_);
      if (!leaving) return;
      record.left[index] = cache.positions[static_cast<size_t>(*leaving)];
      if (merges()) merge(view, g, *leaving, record);
      eviction.leave(*leaving);
      cache.remove(*leaving);
    });
  }

  void merge(const StepView& view, int64_t g, int64_t leaving, StepRecord& record) {
    const auto index = static_cast<size_t>(g);
    HeadMerging::Departure departure =
        mergings_[index].merge(leaving, group(view.queries, g), caches_[index]);
    for (const int64_t entry : departure.changed) evictions_[index].revalue(entry, caches_[index]);
    mergings_[index].leave(leaving);
    record.merged_into[index] = departure.into;
    record.merges[index] = std::move(departure.record);
  }

  double scale() const { return layer_.scale; }

  OperationTimes* times_;
  LayerScores known_;  // of one layer's prompt
  LayerView layer_;
  LayerShape shape_;
  Policy policy_;
  MergePlan plan_{NoMerge{}};
  std::vector<int64_t> budgets_;  // [kv_heads], after allocation
  int64_t next_position_ = 0;
  std::optional<FullCache> full_cache_;  // of policies that rebuild
  std::vector<HeadCache> caches_;        // [kv_heads]
  std::vector<Eviction> evictions_;      // likewise; none for hosts that only grow
  std::vector<HeadMerging> mergings_;    // likewise, of policies that merge
};

}  // namespace

std::unique_ptr<Session> make_session(OperationTimes* times) {
  return std::make_unique<ReferenceSession>(times);
}

}  // namespace kvbound::reference
