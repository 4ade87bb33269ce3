#include "session.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>

#include "append.hpp"
#include "compaction.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

// The entries that a cache has room for beyond those that compression kept.
constexpr int64_t kRoom = 256;

TensorView as_slices(MatrixView matrix, int64_t rows) {
  assert(rows == 1 || matrix.row_stride == matrix.cols);  // a slice's rows have no stride of their own
  return {matrix.data, matrix.rows / rows, rows, matrix.cols, rows * matrix.row_stride};
}

// The observation window's attention over the prompt.
template <Storage T>
struct WindowScores {
  StoredTensor<T> queries;   // [query_heads, window, head_dim]
  DeviceMatrix log_sum_exp;  // [query_heads, window]
  DeviceMatrix mean;         // [query_heads, n], not pooled
};

// The host policy's ranking: the last `always_kept` tokens are always kept; the m tokens before them are candidates.
template <Storage T>
struct Ranking {
  const WindowScores<T>* window;
  int64_t always_kept;
  DeviceMatrix head_scores;  // [query_heads, m], pooled
  DeviceMatrix scores;       // [kv_heads, m]
};

// The kept entries of each KV head: first the selected ones, then those that are always kept.
struct Kept {
  std::vector<int64_t> budgets;  // [kv_heads]
  std::vector<int64_t> selected_counts;
  Buffer<int64_t> device_budgets;
  Buffer<int64_t> device_counts;
  IndexLists positions;
};

template <Storage T>
class DeviceSession final : public Session {
 public:
  DeviceSession(OperationTimes* times, Stream stream) : times_(times), stream_(stream) {}

  PromptRecord compress(const LayerView& layer, const Policy& policy,
                        std::span<const int64_t> budgets) override {
    require_valid(layer, policy, budgets);
    require_supported(policy);
    if (keys_.empty()) upload(layer);
    require_equal("tokens of the layer", layer.prompt_tokens(), "tokens of the session's layer",
                  keys_.rows());
    status_.clear(stream_);
    const Ranking<T> ranking = rank(layer, rules_of(policy.host, layer.prompt_tokens(), 0));
    PromptRecord record;
    record.score_positions.resize(ranking.scores.cols());
    std::iota(record.score_positions.begin(), record.score_positions.end(), 0);
    record.score = ranking.scores.download("score", stream_);
    Kept kept = keep_always(layer, ranking.always_kept, budgets);
    std::visit([&](const auto& selection) { select(layer, ranking, selection, kept, record); },
               policy.selection);
    record.kept = kept.positions.download(kept.budgets, stream_);
    fill_cache(kept);
    return record;
  }

  StepRecord step(const StepView& view) override {
    require_consistent(view, shape_);
    if (most_entries_ == cache_keys_.rows()) grow();
    new_keys_.assign(as_slices(view.keys, 1), stream_);
    new_values_.assign(as_slices(view.values, 1), stream_);
    queries_.assign(view.queries, stream_);
    run("attention", [&] {
      append<T>(new_keys_.view(), new_values_.view(), cache_keys_.view(), cache_values_.view(),
                entries_.data(), stream_);
      attend();
    });
    ++most_entries_;
    return {output_.download("output", stream_), {}};
  }

 private:
  // Queues an operation; waits for it only if times are measured.
  template <class Operation>
  void run(const char* name, const Operation& operation) {
    timed(times_, name, [&] {
      operation();
      if (times_) synchronise(stream_);
    });
  }

  Workspace workspace(int64_t bytes) {
    if (workspace_.size() < bytes) {
      synchronise(stream_);  // queued operations may still use the old workspace
      workspace_ = Buffer<std::byte>(bytes);
    }
    return {workspace_.data(), workspace_.size()};
  }

  void upload(const LayerView& layer) {
    shape_ = layer.shape;
    scale_ = layer.scale;
    run("upload", [&] {
      keys_ = StoredTensor<T>(layer.keys, stream_);
      values_ = StoredTensor<T>(layer.values, stream_);
    });
    new_keys_ = StoredTensor<T>(shape_.kv_heads, 1, shape_.head_dim);
    new_values_ = StoredTensor<T>(shape_.kv_heads, 1, shape_.head_dim);
    queries_ = StoredTensor<T>(1, shape_.query_heads, shape_.head_dim);
    output_ = DeviceMatrix(shape_.query_heads, shape_.head_dim);
    log_sum_exp_ = DeviceMatrix(1, shape_.query_heads);
    status_ = Buffer<int>(1);
    status_.clear(stream_);
  }

  Ranking<T> rank(const LayerView& layer, const HostRules& rules) {
    assert(rules.ranks() && rules.window_reduction == WindowReduction::mean && rules.sinks == 0);
    const WindowScores<T>& window = window_scores_of(layer, rules.window);
    const int64_t tokens = layer.prompt_tokens(), candidates = rules.scored;
    Ranking<T> ranking{
        &window, rules.recent, {shape_.query_heads, candidates}, {shape_.kv_heads, candidates}};
    run("window_attention", [&] {
      max_pool(window.mean.data(), shape_.query_heads, candidates, tokens, rules.pool,
               ranking.head_scores.data(), stream_);
      group_mean(ranking.head_scores.data(), shape_.query_heads, candidates, shape_.group_size(),
                 ranking.scores.data(), stream_);
    });
    return ranking;
  }

  Kept keep_always(const LayerView& layer, int64_t always_kept, std::span<const int64_t> budgets) {
    std::vector<int64_t> counts, last(static_cast<size_t>(always_kept));
    for (const int64_t budget : budgets) counts.push_back(budget - always_kept);
    std::iota(last.begin(), last.end(), layer.prompt_tokens() - always_kept);
    Kept kept{{budgets.begin(), budgets.end()},
              counts,
              Buffer<int64_t>(budgets, stream_),
              Buffer<int64_t>(std::span<const int64_t>(counts), stream_),
              IndexLists(shape_.kv_heads, std::ranges::max(budgets))};
    for (size_t g = 0; g < counts.size(); ++g) {
      kept.positions.upload(static_cast<int64_t>(g), counts[g], last, stream_);
    }
    return kept;
  }

  void select(const LayerView&, const Ranking<T>& ranking, const TopK&, Kept& kept, PromptRecord&) {
    const DeviceMatrix& scores = ranking.scores;
    run("selection", [&] {
      select_top(scores.data(), scores.rows(), scores.cols(), scores.cols(), kept.device_counts.data(),
                 selection_into(kept.positions),
                 workspace(select_top_workspace(scores.rows(), scores.cols())), stream_);
    });
    require_numbers("score");
  }

  void select(const LayerView& layer, const Ranking<T>& ranking, const Critical& options, Kept& kept,
              PromptRecord& record) {
    const DeviceMatrix& norms = norms_of(layer, options.norm);
    const int64_t candidates = ranking.scores.cols();
    DeviceMatrix stage_two(shape_.kv_heads, candidates);
    run("stage_two_scores", [&] {
      stage_two_scores(ranking.head_scores.data(), norms.data(), norms.cols(), shape_.query_heads,
                       shape_.kv_heads, candidates, options.epsilon, options.gqa, stage_two.data(), stream_);
    });
    const Buffer<int64_t> stage_one_counts = stage_one_counts_of(ranking, options, kept);
    IndexLists stage_one(shape_.kv_heads, kept.positions.stride());
    run("selection", [&] {
      select_critical(ranking.scores.data(), stage_two.data(), shape_.kv_heads, candidates,
                      kept.device_counts.data(), stage_one_counts.data(), selection_into(kept.positions),
                      selection_into(stage_one),
                      workspace(select_critical_workspace(shape_.kv_heads, candidates)), stream_);
    });
    require_numbers("stage_two_score");
    record.projected_value_norms = norms.download("projected_value_norms", stream_);
    record.stage_two_score = stage_two.download("stage_two_score", stream_);
    std::vector<int64_t> counts(shape_.kv_heads);
    stage_one_counts.download(counts, stream_);
    record.stage_one = stage_one.download(counts, stream_);
    for (std::vector<int64_t>& positions : record.stage_one) {
      for (int64_t i = layer.prompt_tokens() - ranking.always_kept; i < layer.prompt_tokens(); ++i) {
        positions.push_back(i);
      }
    }
  }

  // require_supported throws for policies with these selections.
  void select(const LayerView&, const Ranking<T>&, const ThetaSweep&, Kept&, PromptRecord&) { assert(false); }
  void select(const LayerView&, const Ranking<T>&, const Greedy&, Kept&, PromptRecord&) { assert(false); }

  Buffer<int64_t> stage_one_counts_of(const Ranking<T>& ranking, const Critical& options, const Kept& kept) {
    if (options.alpha) {
      std::vector<int64_t> counts;
      for (const int64_t k : kept.selected_counts) counts.push_back(floor_of_product(*options.alpha, k));
      return Buffer<int64_t>(std::span<const int64_t>(counts), stream_);
    }
    Buffer<int64_t> counts(shape_.kv_heads);
    IndexLists ranked(shape_.kv_heads, kept.positions.stride());
    const DeviceMatrix& scores = ranking.scores;
    run("selection", [&] {
      rank_top(scores.data(), scores.rows(), scores.cols(), scores.cols(), kept.device_counts.data(),
               selection_into(ranked), workspace(select_top_workspace(scores.rows(), scores.cols())),
               stream_);
      const WindowScores<T>& window = *ranking.window;
      const int64_t bytes =
          adaptive_stage_one_workspace(shape_.query_heads, window.queries.rows(), keys_.rows());
      adaptive_stage_one<T>({window.queries.view(), keys_.view(), scale_}, window.log_sum_exp.data(),
                            ranking.always_kept, ranked.data(), ranked.stride(), kept.device_counts.data(),
                            counts.data(), workspace(bytes), stream_);
      synchronise(stream_);  // `ranked` is released here
    });
    return counts;
  }

  SelectionResult selection_into(IndexLists& lists) { return {lists.data(), lists.stride(), status_.data()}; }

  void require_numbers(const char* what) {
    int is_nan = 0;
    status_.download(std::span(&is_nan, 1), stream_);
    if (is_nan) throw NonFinite(std::string(what) + " is not a number in single precision");
  }

  // Copies the kept entries to the front of a cache with room for decode steps.
  void fill_cache(Kept& kept) {
    most_entries_ = std::ranges::max(kept.budgets);
    reserve(most_entries_ + kRoom);
    entries_ = Buffer<int64_t>(std::span<const int64_t>(kept.budgets), stream_);
    run("compaction", [&] {
      for (const auto& [from, to] : {std::pair(&keys_, &cache_keys_), std::pair(&values_, &cache_values_)}) {
        compact<T>(from->view(), kept.positions.data(), kept.positions.stride(), kept.device_budgets.data(),
                   to->view(), stream_);
      }
    });
    synchronise(stream_);  // the caller releases the lists of positions
  }

  void reserve(int64_t capacity) {
    cache_keys_ = StoredTensor<T>(shape_.kv_heads, capacity, shape_.head_dim);
    cache_values_ = StoredTensor<T>(shape_.kv_heads, capacity, shape_.head_dim);
  }

  // Doubles the capacity, by the compaction that filled the cache.
  void grow() {
    std::vector<int64_t> all(most_entries_);
    std::iota(all.begin(), all.end(), 0);
    IndexLists positions(shape_.kv_heads, most_entries_);
    for (int64_t g = 0; g < shape_.kv_heads; ++g) positions.upload(g, 0, all, stream_);
    const StoredTensor<T> keys = std::move(cache_keys_), values = std::move(cache_values_);
    reserve(2 * most_entries_);
    for (const auto& [from, to] : {std::pair(&keys, &cache_keys_), std::pair(&values, &cache_values_)}) {
      compact<T>(from->view(), positions.data(), positions.stride(), entries_.data(), to->view(), stream_);
    }
    synchronise(stream_);
  }

  void attend() {
    const int64_t capacity = cache_keys_.rows();
    const int64_t bytes = attention_workspace(shape_.query_heads, shape_.kv_heads, shape_.head_dim, capacity);
    const CacheView<T> cache{std::as_const(cache_keys_).view(), std::as_const(cache_values_).view(),
                             entries_.data(), nullptr};
    attention<T>(std::as_const(queries_).view(), cache, scale_,
                 {output_.data(), log_sum_exp_.data(), nullptr}, workspace(bytes), stream_);
  }

  // Computed once for each window size and then reused by all policies and budgets.
  const WindowScores<T>& window_scores_of(const LayerView& layer, int64_t size) {
    const auto [entry, is_new] = window_scores_.try_emplace(size);
    WindowScores<T>& scores = entry->second;
    if (!is_new) return scores;
    const TensorView queries = layer.queries.middle_rows(layer.window_queries() - size, size);
    scores = {
        StoredTensor<T>(queries, stream_), {shape_.query_heads, size}, {shape_.query_heads, keys_.rows()}};
    const WindowView<T> window{std::as_const(scores.queries).view(), std::as_const(keys_).view(), scale_};
    run("window_attention", [&] {
      window_log_sum_exp<T>(window, scores.log_sum_exp.data(),
                            workspace(window_log_sum_exp_workspace(shape_.query_heads, size, keys_.rows())),
                            stream_);
      window_attention<T>(window, scores.log_sum_exp.data(), scores.mean.data(), stream_);
    });
    return scores;
  }

  const DeviceMatrix& norms_of(const LayerView& layer, Norm norm) {
    if (output_projection_.empty()) {
      run("upload", [&] {
        output_projection_ = StoredTensor<T>(as_slices(layer.output_projection, shape_.head_dim), stream_);
      });
    }
    const auto found = norms_.try_emplace(norm);
    DeviceMatrix& norms = found.first->second;
    if (found.second) {
      norms = DeviceMatrix(shape_.query_heads, keys_.rows());
      run("projected_value_norms", [&] {
        projected_value_norms<T>(std::as_const(values_).view(), std::as_const(output_projection_).view(),
                                 norm, norms.data(), stream_);
      });
    }
    return norms;
  }

  OperationTimes* times_;
  Stream stream_;
  LayerShape shape_;
  double scale_ = 1;

  StoredTensor<T> keys_, values_;                     // [kv_heads, n, head_dim]
  StoredTensor<T> output_projection_;                 // [query_heads, head_dim, model_dim]
  std::map<int64_t, WindowScores<T>> window_scores_;  // by window
  std::map<Norm, DeviceMatrix> norms_;                // [query_heads, n]

  StoredTensor<T> cache_keys_, cache_values_;  // [kv_heads, capacity, head_dim]
  Buffer<int64_t> entries_;                    // [kv_heads]
  int64_t most_entries_ = 0;
  StoredTensor<T> new_keys_, new_values_, queries_;
  DeviceMatrix output_, log_sum_exp_;

  Buffer<int> status_;
  Buffer<std::byte> workspace_;
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
