// Oracle recall: how many of the prompt entries whose eviction changes the outputs most are
// found by the prompt's scores.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A score whose recall is measured; without `change` it is attention.
struct RecallScore {
  std::string name;
  std::optional<reference::Change> change;
};

/// All scores, in the order of the reports: attention, value, key, joint, exact and eq-1. eq-1 is OBCache's
/// equation 1 without approximation: key and value are zeroed, but the slot stays in the softmax.
const std::vector<RecallScore>& recall_scores();

struct RecallOptions {
  int64_t k = 40;       ///< size of the top-k sets compared
  int64_t recent = 32;  ///< newest prompt positions excluded from some of the figures
  std::vector<int64_t> windows{1, 8, 16, 32, 64};  ///< numbers of last prompt queries that score
};

/// recall@k of one score of one query head.
struct RecallFigures {
  double first_step = 0;  ///< against the eviction errors of the first decode step, over all prompt entries
  double first_step_recent = 0;  ///< the same without the newest `recent` entries
  double mean_step = 0;  ///< against the eviction errors' mean over all decode steps, over all prompt entries
  double mean_step_recent = 0;  ///< the same without the newest `recent` entries
};

/// The recall of one score computed over one window.
struct ScoreRecall {
  std::string score;
  int64_t window = 0;
  std::vector<RecallFigures> heads;  ///< [query_heads]
};

struct LayerRecall {
  int64_t layer = 0;
  std::vector<ScoreRecall> scores;  ///< every score, each with every window
};

struct RecallResult {
  traces::TraceInfo trace;
  RecallOptions options;
  std::vector<LayerRecall> layers;
};

/// The recall of every score, for every query head of a layer.
///
/// truth  entry j of n, at step t of 1..T, has the eviction error || o - o_(-j) ||_2^2 over the n + t entries
///        then in the cache (reference::eviction_errors); recall is measured against step 1's errors and
///        against their mean over steps
/// score  summed over the window's queries, neither pooled nor reduced over the group of query heads
/// layer  must have a decode step
/// done   is called after every work item, recall_pieces(options) times
///
/// throws  ShapeMismatch if k is below 1 or above the candidates, or a window is not recorded; NonFinite
/// source  OBCache (arXiv:2510.07651), Figure 2
std::vector<ScoreRecall> layer_recall(const traces::Layer& layer, const RecallOptions& options,
                                      const std::function<void()>& done = {});
int64_t recall_pieces(const RecallOptions& options);

/// The same for some of a trace's layers, one in memory at a time.
///
/// progress  called with the number of work items done, and their total
/// Throws TraceError, also for numbers so large that attention over them overflows.
RecallResult recall(const traces::Trace& trace, const std::vector<int64_t>& layers,
                    const RecallOptions& options, const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace kvbound::sim
