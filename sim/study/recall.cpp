#include "recall.hpp"

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/h2o.hpp>
#include <kvbound/reference/eviction/recall.hpp>

namespace kvbound::sim {
namespace {

// || o - o_(-j) ||^2 per query head and prompt entry, [query_heads, n], at decode step t = 0, 1, ...
Matrix step_errors(const traces::Layer& layer, int64_t t) {
  const int64_t entries = layer.prompt_tokens + t + 1;
  return reference::eviction_errors(layer.shape, layer.scale, layer.keys.view().middle_rows(0, entries),
                                    layer.values.view().middle_rows(0, entries), layer.step(t).queries,
                                    layer.prompt_tokens);
}

// The eviction errors that scores are compared with.
struct Truth {
  Matrix first_step;  // [query_heads, n]
  Matrix mean_step;   // likewise
};

Truth truth_of(const traces::Layer& layer) {
  const int64_t steps = layer.keys.view().rows - layer.prompt_tokens;
  Truth truth{step_errors(layer, 0), {}};
  truth.mean_step = truth.first_step;
  for (int64_t t = 1; t < steps; ++t) {
    const Matrix errors = step_errors(layer, t);
    for (int64_t h = 0; h < errors.rows(); ++h) {
      const std::span<double> sum = truth.mean_step.row(h);
      for (int64_t j = 0; j < errors.cols(); ++j) sum[j] += errors(h, j);
    }
  }
  for (int64_t h = 0; h < truth.mean_step.rows(); ++h) {
    for (double& error : truth.mean_step.row(h)) error /= static_cast<double>(steps);
  }
  return truth;
}

Matrix scores_of(const traces::Layer& layer, const RecallScore& score, int64_t window) {
  const LayerView prompt = layer.prompt();
  return score.change ? reference::window_scores(prompt, window, *score.change, Space::head)
                      : reference::accumulated_attention(prompt, window);
}

RecallFigures figures(VectorView scores, const Truth& truth, int64_t head, const RecallOptions& options) {
  const auto old = scores.size() - static_cast<size_t>(options.recent);  // entries before the newest ones
  const VectorView first = truth.first_step.row(head), mean = truth.mean_step.row(head);
  return {reference::recall(scores, first, options.k),
          reference::recall(scores.first(old), first.first(old), options.k),
          reference::recall(scores, mean, options.k),
          reference::recall(scores.first(old), mean.first(old), options.k)};
}

void require_valid(const traces::Layer& layer, const RecallOptions& options) {
  if (layer.keys.view().rows == layer.prompt_tokens) {
    throw ShapeMismatch("there is no decode step to know the eviction errors from");
  }
  if (options.k < 1 || options.recent < 0 || options.recent > layer.prompt_tokens - options.k) {
    throw ShapeMismatch(fmt::format("{} entries, the newest {} excepted, have no top {}", layer.prompt_tokens,
                                    options.recent, options.k));
  }
}

}  // namespace

const std::vector<RecallScore>& recall_scores() {
  using reference::Change;
  static const std::vector<RecallScore> scores{{"attention", {}},        {"value", Change::value},
                                               {"key", Change::key},     {"joint", Change::joint},
                                               {"exact", Change::exact}, {"eq-1", Change::slot}};
  return scores;
}

int64_t recall_pieces(const RecallOptions& options) {
  return 1 + static_cast<int64_t>(recall_scores().size() * options.windows.size());
}

std::vector<ScoreRecall> layer_recall(const traces::Layer& layer, const RecallOptions& options,
                                      const std::function<void()>& done) {
  require_valid(layer, options);
  const Truth truth = truth_of(layer);
  if (done) done();
  std::vector<ScoreRecall> result;
  for (const RecallScore& score : recall_scores()) {
    for (const int64_t window : options.windows) {
      const Matrix scores = scores_of(layer, score, window);
      ScoreRecall& recall = result.emplace_back(ScoreRecall{score.name, window, {}});
      recall.heads.resize(layer.shape.query_heads);
      reference::parallel_for(layer.shape.query_heads, [&](int64_t h) {
        recall.heads[h] = figures(scores.row(h), truth, h, options);
      });
      if (done) done();
    }
  }
  return result;
}

RecallResult recall(const traces::Trace& trace, const std::vector<int64_t>& layers,
                    const RecallOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  RecallResult result{trace.info(), options, {}};
  int64_t pieces = 0;
  const auto done = [&] {
    ++pieces;
    if (progress) progress(pieces, recall_pieces(options) * std::ssize(layers));
  };
  for (const int64_t l : layers) {
    const traces::Layer layer = trace.read_layer(l);
    try {
      result.layers.push_back({l, layer_recall(layer, options, done)});
    } catch (const NonFinite& error) {
      throw TraceError(trace.info().path, -1, fmt::format("layers.{}", l),
                       fmt::format("its numbers are too large to compute with: {}", error.what()));
    }
  }
  return result;
}

}  // namespace kvbound::sim
