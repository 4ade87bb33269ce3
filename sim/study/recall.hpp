// Oracle recall: how many of the prompt entries whose eviction would hurt most the scores of the prompt find.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A score whose recall is measured; no change: attention.
struct RecallScore {
  std::string name;
  std::optional<reference::Change> change;
};

/// All of them, in the order of the reports: attention, value, key, joint, exact and eq-1, which is OBCache's eq. 1 without
/// approximation (key and value zeroed, the slot kept).
const std::vector<RecallScore>& recall_scores();

struct RecallOptions {
  int64_t k = 40;                                  ///< entries wanted
  int64_t recent = 32;                             ///< newest prompt positions that are no candidates
  std::vector<int64_t> windows{1, 8, 16, 32, 64};  ///< how many of the prompt's last queries score
};

/// recall@k of one score of one query head.
struct RecallFigures {
  double first_step = 0;  ///< against the eviction errors of the first decode step, over all prompt entries
  double first_step_recent = 0;  ///< over those that are not among the newest `recent`
  double mean_step = 0;  ///< against the eviction errors' mean over all decode steps, over all prompt entries
  double mean_step_recent = 0;  ///< over those that are not among the newest `recent`
};

/// One score with one window.
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
/// truth  of entry j of n, at step t of 1..T: || o - o_(-j) ||_2^2 over the n + t entries that are there then
///        (reference::eviction_errors); one truth is step 1's, the other the mean over all steps
/// score  summed over the window's queries, neither pooled nor reduced over the group of query heads
/// layer  has a decode step
/// done   is called after every piece of work, recall_pieces(options) times
///
/// throws  ShapeMismatch if k is below 1 or above the candidates, or a window is not recorded; NonFinite
/// source  OBCache (arXiv:2510.07651), Figure 2
std::vector<ScoreRecall> layer_recall(const traces::Layer& layer, const RecallOptions& options,
                                      const std::function<void()>& done = {});
int64_t recall_pieces(const RecallOptions& options);

/// The same for some of a trace's layers, one in memory at a time.
///
/// progress  pieces of work done, pieces in all
/// Throws TraceError, also for numbers so large that attention over them overflows.
RecallResult recall(const traces::Trace& trace, const std::vector<int64_t>& layers,
                    const RecallOptions& options, const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace kvbound::sim
