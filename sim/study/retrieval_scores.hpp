// The importance of query heads by how much of the answer they read from the needle, for HeadKV.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/options/budget.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// The needle of a trace: the prompt's positions that hold what the decode steps answer.
struct Needle {
  int64_t first = 0;
  int64_t last = 0;

  int64_t size() const { return last - first + 1; }
  bool has(int64_t position) const { return first <= position && position <= last; }
};

/// The retrieval-reasoning score of every query head of a layer.
///
///     s_h = sum_t sum_{j in top k of A_t, j in the needle} A_tj
///
/// over the decode steps t, A_t the head's attention over the full cache, the step's own entry included
/// (ties: smaller position).
///
/// layer    with at least one decode step
/// needle   within the prompt
/// top      k >= 1, at most the prompt's entries
/// returns  [query_heads]
/// throws   NonFinite if a logit is NaN or infinite
/// source   HeadKV (arXiv:2410.19258), whose k is the needle's size
std::vector<double> retrieval_scores(const traces::Layer& layer, const Needle& needle, int64_t top);

/// A trace of an example, and where its needle is.
struct NeedleTrace {
  const traces::Trace* trace;
  Needle needle;
};

/// The mean of every query head's scores over several examples of one model.
///
/// top       k; nullopt: each needle's size
/// progress  called with the number of layers done, and their total
/// returns   [layers, query heads]
/// throws    InvalidPolicy, naming the trace, for traces of other layers or heads than the first one's,
///           without decode steps, or whose prompt the needle or k exceeds; TraceError, as Trace::read_layer
///           and for numbers so large that attention over them overflows
Matrix mean_retrieval_scores(const std::vector<NeedleTrace>& examples, const std::optional<Budget>& top,
                             const std::function<void(int64_t, int64_t)>& progress = {});

/// The scores as a file for `headkv:scores=FILE`. Format: traces/README.md.
std::string head_scores_text(const std::string& model, const Matrix& scores);

}  // namespace kvbound::sim
