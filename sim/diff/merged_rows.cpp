#include "merged_rows.hpp"

namespace kvbound::sim {

void MergedRows::append(const HeadMerge& merge) {
  votes.insert(votes.end(), merge.votes.begin(), merge.votes.end());
  for (int64_t i = 0; i < merge.keys.rows(); ++i) {
    keys.append_row(merge.keys.row(i));
    values.append_row(merge.values.row(i));
  }
}

std::optional<MergedRows> prompt_rows(const PromptRecord& prompt) {
  if (prompt.merges.empty()) return std::nullopt;
  MergedRows rows;
  for (const HeadMerge& merge : prompt.merges) rows.append(merge);
  return rows;
}

std::optional<MergedRows> rebuilt_rows(const std::vector<StepRecord>& steps) {
  std::optional<MergedRows> rows;
  for (const StepRecord& step : steps) {
    if (!step.rebuilt) continue;
    if (!rows) rows.emplace();
    for (const HeadMerge& merge : step.merges) rows->append(merge);
  }
  return rows;
}

std::optional<MergedRows> step_rows(const LayerRecord& record) {
  const bool clusters = !record.prompt.merges.empty() && !record.prompt.merges.front().target_of.empty();
  if (!clusters || record.steps.empty() || record.steps.front().merged_into.empty()) return std::nullopt;
  const std::vector<double> nothing(record.steps.front().output.cols());
  MergedRows rows;
  for (const StepRecord& step : record.steps) {
    for (size_t g = 0; g < step.merged_into.size(); ++g) {
      // A step that begins with a rebuild records the whole cache, and evicts nothing.
      if (step.merged_into[g] >= 0 && !step.rebuilt) {
        rows.append(step.merges[g]);
        continue;
      }
      rows.votes.push_back(0);
      rows.keys.append_row(nothing);
      rows.values.append_row(nothing);
    }
  }
  return rows;
}

}  // namespace kvbound::sim
