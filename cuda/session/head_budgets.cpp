#include "head_budgets.hpp"

#include <algorithm>
#include <variant>

#include <kvbound/cuda/eviction/allocation.hpp>
#include <kvbound/reference/core/score_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

template <Storage T>
struct HeadBudgets {
  const Policy& policy;
  const Ranking& ranking;
  std::span<const int64_t> budgets;
  LayerScores<T>& known;
  Queue& queue;

  std::vector<int64_t> operator()(const Uniform&) const { return {budgets.begin(), budgets.end()}; }
  std::vector<int64_t> operator()(const Pyramid&) const { return {budgets.begin(), budgets.end()}; }
  std::vector<int64_t> operator()(const HeadKv&) const { return {budgets.begin(), budgets.end()}; }
  std::vector<int64_t> operator()(const AdaKv& options) const {
    if (!kvbound::rules_of(policy.score).change) return shared(options, ranking);
    Policy by_attention = policy;
    by_attention.score = AttentionScore{};
    return shared(options, rank(by_attention, ranking.rules, known, queue));
  }

 private:
  std::vector<int64_t> shared(const AdaKv& options, const Ranking& by_attention) const {
    std::vector<int64_t> result;
    for (const int64_t budget : budgets) result.push_back(budget - ranking.always_kept());
    const Buffer<int64_t> candidates(std::span<const int64_t>(result), queue.stream());
    Buffer<int64_t> own(std::ssize(result));
    queue.run("selection", [&] {
      adakv_budgets(options, by_attention.free_scores(), own.size(), ranking.candidates,
                    by_attention.scores.cols(), candidates.data(), own.data(), queue.status(),
                    queue.stream());
    });
    Readback& reads = queue.read_back();
    queue.require_numbers(reads, "score");
    reads.then([&result, shared = reads.of(own)](const Arrived& arrived) {
      std::ranges::copy(arrived[shared], result.begin());
    });
    reads.fetch(queue.pool());
    queue.finish();
    for (int64_t& budget : result) budget += ranking.always_kept();
    return result;
  }
};

}  // namespace

template <Storage T>
std::vector<int64_t> head_budgets(const Policy& policy, const Ranking& ranking,
                                  std::span<const int64_t> budgets, LayerScores<T>& known, Queue& queue) {
  return std::visit(HeadBudgets<T>{policy, ranking, budgets, known, queue}, policy.allocation);
}

template std::vector<int64_t> head_budgets(const Policy&, const Ranking&, std::span<const int64_t>,
                                           LayerScores<float>&, Queue&);
template std::vector<int64_t> head_budgets(const Policy&, const Ranking&, std::span<const int64_t>,
                                           LayerScores<Float16>&, Queue&);
template std::vector<int64_t> head_budgets(const Policy&, const Ranking&, std::span<const int64_t>,
                                           LayerScores<Bfloat16>&, Queue&);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
