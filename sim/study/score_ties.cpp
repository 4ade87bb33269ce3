#include "score_ties.hpp"

#include <algorithm>
#include <functional>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::sim {

ScoreTies score_ties(VectorView scores, int64_t k) {
  require_within("k", k, 0, std::ssize(scores));
  ScoreTies ties;
  if (scores.empty()) return ties;
  std::vector<double> descending(scores.begin(), scores.end());
  std::ranges::sort(descending, std::greater<>());
  int64_t tied = 0;
  for (auto first = descending.begin(); first != descending.end();) {
    const auto last = std::find_if(first, descending.end(), [&](double score) { return score != *first; });
    const int64_t count = last - first, begin = first - descending.begin();
    if (count > 1) tied += count;
    if (begin < k && k <= begin + count) ties.cut = CutTies{count, k - begin};
    first = last;
  }
  ties.share = static_cast<double>(tied) / static_cast<double>(scores.size());
  if (ties.cut && ties.cut->selected < ties.cut->tied) {
    ties.tie_break = static_cast<double>(ties.cut->selected) / static_cast<double>(k);
  }
  return ties;
}

std::vector<double> rounded_to_bfloat16(VectorView scores) {
  std::vector<double> rounded(scores.size());
  std::ranges::transform(scores, rounded.begin(),
                         [](double score) { return from_bfloat16(to_bfloat16(score)); });
  return rounded;
}

}  // namespace kvbound::sim
