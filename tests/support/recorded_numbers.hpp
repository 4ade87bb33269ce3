// Everything that a session records, as one list of numbers: sessions with the same
// results give the same list.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "random_layer.hpp"

namespace kvbound::test {

class RecordedNumbers {
 public:
  void add(const PromptRecord& record) {
    for (const auto& kept : record.kept) add_all(kept);
    for (const auto& stage_one : record.stage_one) add_all(stage_one);
    add_all(record.score_positions);
    add_all(record.score.numbers());
    if (record.stage_two_score) add_all(record.stage_two_score->numbers());
    if (record.projected_value_norms) add_all(record.projected_value_norms->numbers());
    for (const HeadMerge& merge : record.merges) add(merge);
  }
  void add(const StepRecord& record) {
    add_all(record.output.numbers());
    add_all(record.evicted);
    add_all(record.merged_into);
    for (const HeadMerge& merge : record.merges) add(merge);
  }
  const std::vector<double>& numbers() const { return numbers_; }

 private:
  void add(const HeadMerge& merge) {
    for (const MergeCluster& cluster : merge.clusters) {
      numbers_.push_back(static_cast<double>(cluster.into));
      add_all(cluster.from);
      add_all(cluster.log_scores.numbers());
    }
    const MergeCounts& counts = merge.counts;
    add_all(std::vector<int64_t>{counts.leaving, counts.merged, counts.clusters, counts.singular,
                                 counts.negative, counts.far});
    add_all(merge.positions);
    add_all(merge.votes);
    add_all(merge.keys.numbers());
    add_all(merge.values.numbers());
  }
  template <class Range>
  void add_all(const Range& range) {
    numbers_.push_back(static_cast<double>(std::size(range)));
    for (const auto number : range) numbers_.push_back(static_cast<double>(number));
  }

  std::vector<double> numbers_;
};

/// The numbers that a session records for a layer's prompt and its first `steps` steps.
inline std::vector<double> recorded_numbers(Session& session, const RandomLayer& layer, const Policy& policy,
                                            const std::vector<int64_t>& budgets, int64_t steps) {
  RecordedNumbers result;
  result.add(session.compress(layer.view(), policy, budgets));
  for (int64_t t = 0; t < steps; ++t) result.add(session.step(layer.step(t)));
  return result.numbers();
}

}  // namespace kvbound::test
