#include "retrieval_scores.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/messages.hpp>

#include "query_logits.hpp"

namespace kvbound::sim {
namespace {

// The attention of one query on the needle's entries that are among its top.
double on_needle(VectorView logits, const Needle& needle, int64_t top) {
  std::vector<double> attention(logits.size());
  reference::softmax(logits, std::ranges::max(logits), attention);
  double sum = 0;
  for (const int64_t j : reference::select_top(attention, top)) {
    if (needle.has(j)) sum += attention[j];
  }
  return sum;
}

// k of an example; throws InvalidPolicy if the example does not fit.
int64_t checked_top(const NeedleTrace& example, const traces::TraceInfo& first,
                    const std::optional<Budget>& top) {
  const traces::TraceInfo& info = example.trace->info();
  const auto refuse = [&](const std::string& problem) {
    throw InvalidPolicy(traces::printable_path(info.path) + ": " + problem);
  };
  if (info.layers != first.layers || info.shape.query_heads != first.shape.query_heads) {
    refuse(fmt::format("{} layers of {} query heads, but the first trace has {} of {}", info.layers,
                       info.shape.query_heads, first.layers, first.shape.query_heads));
  }
  if (info.decode_tokens == 0) refuse("no decode steps, which are the answer");
  if (example.needle.last >= info.prompt_tokens)
    refuse(fmt::format("the needle ends at position {} of a prompt of {} tokens", example.needle.last,
                       info.prompt_tokens));
  const int64_t count = top ? top->entries(info.prompt_tokens) : example.needle.size();
  if (count < 1 || count > info.prompt_tokens)
    refuse(fmt::format("no top of {} of the prompt's {} entries", count, info.prompt_tokens));
  return count;
}

}  // namespace

std::vector<double> retrieval_scores(const traces::Layer& layer, const Needle& needle, int64_t top) {
  const int64_t steps = layer.keys.view().rows - layer.prompt_tokens;
  std::vector<double> scores(layer.shape.query_heads);
  reference::parallel_for(layer.shape.query_heads, [&](int64_t h) {
    visit_query_logits(layer, h, steps, [&](int64_t query, VectorView logits) {
      if (query >= layer.window_queries) scores[h] += on_needle(logits, needle, top);
    });
  });
  return scores;
}

Matrix mean_retrieval_scores(const std::vector<NeedleTrace>& examples, const std::optional<Budget>& top,
                             const std::function<void(int64_t, int64_t)>& progress) {
  const traces::TraceInfo& first = examples.front().trace->info();
  std::vector<int64_t> tops;
  for (const NeedleTrace& example : examples) tops.push_back(checked_top(example, first, top));
  Matrix mean(first.layers, first.shape.query_heads);
  int64_t done = 0;
  for (size_t i = 0; i < examples.size(); ++i) {
    for (int64_t l = 0; l < first.layers; ++l) {
      std::vector<double> scores;
      try {
        scores = retrieval_scores(examples[i].trace->read_layer(l), examples[i].needle, tops[i]);
      } catch (const NonFinite& error) {
        throw TraceError(examples[i].trace->info().path, -1, fmt::format("layers.{}", l),
                         fmt::format("its numbers are too large to compute with: {}", error.what()));
      }
      for (size_t h = 0; h < scores.size(); ++h)
        mean(l, static_cast<int64_t>(h)) += scores[h] / static_cast<double>(examples.size());
      if (progress) progress(++done, std::ssize(examples) * first.layers);
    }
  }
  return mean;
}

std::string head_scores_text(const std::string& model, const Matrix& scores) {
  std::string text =
      fmt::format("{{\"format\": \"kvbound-head-scores\", \"version\": 1, \"model\": {},\n \"scores\": [",
                  nlohmann::json(model).dump());
  for (int64_t l = 0; l < scores.rows(); ++l) {
    text += l == 0 ? "\n  [" : ",\n  [";
    for (int64_t h = 0; h < scores.cols(); ++h) text += (h == 0 ? "" : ", ") + shortest(scores(l, h));
    text += "]";
  }
  return text + "\n ]}\n";
}

}  // namespace kvbound::sim
