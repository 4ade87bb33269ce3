#include "prompt_merging.hpp"

#include "prompt_selection.hpp"

namespace kvbound::reference {

std::vector<MergeTargets> merge_targets(const LayerView& layer, const SimilarTarget& target, MergeOrder order,
                                        const Ranking& ranking, std::span<const int64_t> budgets,
                                        std::vector<std::vector<int64_t>>& kept) {
  std::vector<MergeTargets> targets;
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    const int64_t index = g;
    const MatrixView keys = layer.keys.slice(g);
    switch (order) {
      case MergeOrder::evict_first:
        targets.push_back(evict_first(keys, kept[index], target));
        break;
      case MergeOrder::merge_first:
        targets.push_back(merge_first(keys, ranking.candidate_scores(ranking.scores, g), ranking.always_kept,
                                      candidates_kept(ranking, budgets)[index], target));
        kept[index] = targets.back().kept;
        break;
    }
  }
  return targets;
}

}  // namespace kvbound::reference
