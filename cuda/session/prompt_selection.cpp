#include "prompt_selection.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>
#include <variant>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/greedy.hpp>
#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/eviction/theta_sweep.hpp>
#include <kvbound/reference/core/draw.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// Some of a matrix's columns, ascending.
Matrix columns_of(Matrix matrix, std::span<const int64_t> columns) {
  if (std::ssize(columns) == matrix.cols()) return matrix;
  Matrix result(matrix.rows(), std::ssize(columns));
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    for (size_t j = 0; j < columns.size(); ++j) result.row(r)[j] = matrix.row(r)[columns[j]];
  }
  return result;
}

// Selects among the candidates of a ranking, by the policy's selection.
template <Storage T>
class PromptSelection {
 public:
  PromptSelection(const Ranking& ranking, LayerScores<T>& known, Queue& queue, KeptEntries& kept,
                  PromptRecord& record)
      : shape_(known.layer().shape),
        ranking_(ranking),
        known_(known),
        queue_(queue),
        kept_(kept),
        record_(record),
        reads_(queue.read_back()) {
    for (const int64_t budget : kept.budgets) selected_.push_back(budget - ranking.always.entries());
    selected_counts_ = Buffer<int64_t>(std::span<const int64_t>(selected_), queue.stream());
  }

  void run(const Policy& policy) {
    record_.score_positions = ranking_.rules.scored_positions();
    reads_.then([&record = record_, scores = reads_.of(ranking_.scores)](const Arrived& arrived) {
      record.score = columns_of(arrived.matrix(scores, "score"), record.score_positions);
    });
    upload_always_kept();
    std::visit([&](const auto& selection) { select(selection); }, policy.selection);
    reads_.then([&record = record_, kept = reads_.of(kept_.positions), counts = kept_.budgets](
                    const Arrived& arrived) { record.kept = arrived.lists(kept, counts); });
    reads_.fetch(queue_.pool());
  }

 private:
  int64_t tokens() const { return known_.layer().prompt_tokens(); }
  std::vector<int64_t> recent() const {
    return range(tokens() - ranking_.always.recent, ranking_.always.recent);
  }
  const float* scores() const { return ranking_.candidate_scores(); }
  int64_t row_stride() const { return ranking_.scores.cols(); }

  // The sinks stand in front of the selected entries, the newest behind them.
  void upload_always_kept() {
    const std::vector<int64_t> first = range(0, ranking_.always.sinks), last = recent();
    for (int64_t g = 0; g < shape_.kv_heads; ++g) {
      kept_.positions.upload(g, 0, first, queue_.stream());
      kept_.positions.upload(g, std::ssize(first) + selected_[g], last, queue_.stream());
    }
  }

  // Where selected positions are written: behind `offset` others.
  SelectionResult into(IndexLists& lists, int64_t offset = 0) {
    return {lists.data() + offset, lists.stride(), queue_.status(), ranking_.always.sinks};
  }

  // The candidates of largest score in every row of kv_heads rows of scores.
  void top_k(const float* of_candidates, int64_t stride, IndexLists& lists, int64_t offset) {
    select_top(of_candidates, shape_.kv_heads, ranking_.candidates, stride, selected_counts_.data(),
               into(lists, offset),
               queue_.workspace(select_top_workspace(shape_.kv_heads, ranking_.candidates)), queue_.stream());
  }

  void select(const TopK&) {
    queue_.run("selection", [&] { top_k(scores(), row_stride(), kept_.positions, ranking_.always.sinks); });
    queue_.require_numbers(reads_, "score");
  }

  void select(const Critical& options) {
    DeviceMatrix stage_two = stage_two_of(options);
    Buffer<int64_t> counts = stage_one_counts(options);
    IndexLists stage_one(shape_.kv_heads, kept_.positions.stride());
    critical(options, stage_two, counts, kept_.positions, ranking_.always.sinks, into(stage_one));
    queue_.require_numbers(reads_, "stage_two_score");
    record_norms(known_.norms(options.norm));
    reads_.then([&record = record_, scores = reads_.of(stage_two)](const Arrived& arrived) {
      record.stage_two_score = columns_of(arrived.matrix(scores, "stage_two_score"), record.score_positions);
    });
    record_stage_one(stage_one, counts);
    reads_.keep(std::tuple(std::move(stage_two), std::move(stage_one), std::move(counts)));
  }

  void select(const ThetaSweep& options) {
    const DeviceMatrix& norms = known_.norms(options.norm);
    const DeviceMatrix& weights = known_.attention(ranking_.rules.window, WindowReduction::mean);
    const ThetaSweepInput input{weights.data(), norms.data(),          shape_.query_heads, shape_.kv_heads,
                                tokens(),       ranking_.always.sinks, ranking_.candidates};
    const DeviceMatrix stage_two = stage_two_of(options);
    const Buffer<int64_t> counts = stage_one_counts(options);
    IndexLists tried(shape_.kv_heads, kept_.positions.stride());
    const std::vector<float> none(shape_.kv_heads, -1);
    Buffer<float> bounds(std::span<const float>(none), queue_.stream());
    const BestSelection best{bounds.data(), kept_.positions.data() + ranking_.always.sinks, tried.stride()};
    const auto consider = [&] {
      keep_better(input, tried.data(), selected_counts_.data(), best,
                  queue_.workspace(keep_better_workspace(shape_.kv_heads, tokens())), queue_.stream());
    };
    DeviceMatrix means(1, shape_.query_heads), sweep(shape_.kv_heads, ranking_.candidates);
    queue_.run("selection", [&] {
      mean_norms(input, means.data(), queue_.stream());
      for (const double lambda : theta_sweep_lambdas()) {
        sweep_scores(input, means.data(), lambda, sweep.data(), queue_.stream());
        ranking_.put_first(sweep, queue_.stream());
        top_k(sweep.data(), sweep.cols(), tried, 0);
        consider();
      }
      top_k(scores(), row_stride(), tried, 0);
      consider();
    });
    critical(options, stage_two, counts, tried, 0, {});
    queue_.run("selection", consider);
    queue_.require_numbers(reads_, "score");
    record_norms(norms);
  }

  void select(const Greedy&) {
    const WindowView<T> window = known_.layer().window(ranking_.rules.window);
    const int64_t bytes = select_greedy_workspace(shape_.query_heads, shape_.kv_heads, shape_.head_dim,
                                                  ranking_.rules.window, tokens());
    queue_.run("removal_order", [&] {
      select_greedy<T>(window, known_.layer().values, ranking_.candidates, selected_counts_.data(),
                       into(kept_.positions, ranking_.always.sinks), queue_.workspace(bytes),
                       queue_.stream());
    });
    queue_.require_numbers(reads_, "removal error");
  }

  DeviceMatrix stage_two_of(const TwoStage& options) {
    const DeviceMatrix& norms = known_.norms(options.norm);
    const int64_t scored = ranking_.scores.cols();
    DeviceMatrix stage_two(shape_.kv_heads, scored);
    queue_.run("stage_two_scores", [&] {
      stage_two_scores(ranking_.head_scores.data(), norms.data(), norms.cols(), shape_.query_heads,
                       shape_.kv_heads, scored, options.epsilon, options.gqa, stage_two.data(),
                       queue_.stream());
    });
    return stage_two;
  }

  // Selects by CriticalKV's two stages.
  void critical(const TwoStage& options, const DeviceMatrix& recorded,
                const Buffer<int64_t>& stage_one_counts, IndexLists& lists, int64_t offset,
                const SelectionResult& stage_one) {
    DeviceMatrix
        raised;  // of entries that are always kept, which an adaptive stage one may leave to stage two
    if (!ranking_.pinned.empty()) {
      raised = stage_two_of(options);
      ranking_.put_first(raised, queue_.stream());
    }
    const DeviceMatrix& stage_two = ranking_.pinned.empty() ? recorded : raised;
    queue_.run("selection", [&] {
      select_critical(
          scores(), stage_two.data() + ranking_.always.sinks, shape_.kv_heads, ranking_.candidates,
          row_stride(), selected_counts_.data(), stage_one_counts.data(), into(lists, offset), stage_one,
          queue_.workspace(select_critical_workspace(shape_.kv_heads, ranking_.candidates)), queue_.stream());
    });
  }

  Buffer<int64_t> stage_one_counts(const TwoStage& options) {
    if (options.alpha) {
      const auto pinned = std::ssize(ranking_.pinned);
      std::vector<int64_t> counts;
      for (const int64_t k : selected_)
        counts.push_back(pinned + floor_of_product(*options.alpha, k - pinned));
      return Buffer<int64_t>(std::span<const int64_t>(counts), queue_.stream());
    }
    Buffer<int64_t> counts(shape_.kv_heads);
    const DeviceMatrix& log_sum_exp = known_.log_sum_exp(ranking_.rules.window);
    IndexLists ranked(shape_.kv_heads, kept_.positions.stride());
    queue_.run("selection", [&] {
      rank_top(scores(), shape_.kv_heads, ranking_.candidates, row_stride(), selected_counts_.data(),
               into(ranked), queue_.workspace(select_top_workspace(shape_.kv_heads, ranking_.candidates)),
               queue_.stream());
      const WindowView<T> window = known_.layer().window(ranking_.rules.window);
      const int64_t bytes = adaptive_stage_one_workspace(shape_.query_heads, window.queries.rows, tokens());
      adaptive_stage_one<T>(window, log_sum_exp.data(), ranking_.always, ranked.data(), ranked.stride(),
                            selected_counts_.data(), counts.data(), queue_.workspace(bytes), queue_.stream());
    });
    return counts;
  }

  // Stage one's entries and the always-kept ones, ascending.
  void record_stage_one(const IndexLists& stage_one, const Buffer<int64_t>& device_counts) {
    reads_.then([&record = record_, lists = reads_.of(stage_one), counts = reads_.of(device_counts),
                 always_kept = ranking_.rules.always_kept(tokens())](const Arrived& arrived) {
      for (const std::vector<int64_t>& positions : arrived.lists(lists, arrived[counts]))
        std::ranges::set_union(positions, always_kept, std::back_inserter(record.stage_one.emplace_back()));
    });
  }

  void record_norms(const DeviceMatrix& of_values) {
    reads_.then([&record = record_, norms = reads_.of(of_values)](const Arrived& arrived) {
      record.projected_value_norms = arrived.matrix(norms, "projected_value_norms");
    });
  }

  const LayerShape shape_;
  const Ranking& ranking_;
  LayerScores<T>& known_;
  Queue& queue_;
  KeptEntries& kept_;
  std::vector<int64_t> selected_;    // [kv_heads]: number of candidates to select
  Buffer<int64_t> selected_counts_;  // the same in device memory
  PromptRecord& record_;
  Readback& reads_;
};

}  // namespace

KeptEntries::KeptEntries(std::span<const int64_t> own_budgets, int64_t capacity, Stream stream)
    : budgets(own_budgets.begin(), own_budgets.end()),
      counts(own_budgets, stream),
      positions(std::ssize(own_budgets), capacity) {}

template <Storage T>
void select_prompt(const Policy& policy, const Ranking& ranking, LayerScores<T>& known, Queue& queue,
                   KeptEntries& kept, PromptRecord& record) {
  PromptSelection<T>(ranking, known, queue, kept, record).run(policy);
}

void keep_unranked(const Host& host, int64_t prompt_tokens, int64_t layer, KeptEntries& kept,
                   PromptRecord& record, Stream stream) {
  for (int64_t g = 0; g < std::ssize(kept.budgets); ++g) {
    const int64_t budget = kept.budgets[g];
    const HostRules rules = rules_of(host, prompt_tokens, budget);
    if (rules.given) {
      kept.positions.upload(g, 0, rules.given->kept[g], stream);
      record.kept.push_back(rules.given->kept[g]);
      continue;
    }
    std::vector<int64_t> positions = range(0, rules.sinks);
    const auto append = [&](const std::vector<int64_t>& others) {
      positions.insert(positions.end(), others.begin(), others.end());
    };
    const int64_t first_recent = prompt_tokens - rules.recent;
    if (rules.seed) {
      append(drawn_positions({*rules.seed, layer, g}, rules.sinks, first_recent,
                             budget - rules.sinks - rules.recent));
    }
    append(range(first_recent, rules.recent));
    kept.positions.upload(g, 0, positions, stream);
    record.kept.push_back(std::move(positions));
  }
}

template void select_prompt(const Policy&, const Ranking&, LayerScores<float>&, Queue&, KeptEntries&,
                            PromptRecord&);
template void select_prompt(const Policy&, const Ranking&, LayerScores<Float16>&, Queue&, KeptEntries&,
                            PromptRecord&);
template void select_prompt(const Policy&, const Ranking&, LayerScores<Bfloat16>&, Queue&, KeptEntries&,
                            PromptRecord&);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
