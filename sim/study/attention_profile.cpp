#include "attention_profile.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/core/error.hpp>

#include "query_logits.hpp"

namespace kvbound::sim {
namespace {

// H = ln S - sum_j A_j (z_j - largest z), S the softmax's denominator: a sum of terms >= 0, which does
// not cancel. Writes the weights A. The least logits of all may differ from the largest by infinity,
// but then their weight is 0.
double softmax_entropy(VectorView logits, std::span<double> weights) {
  const double largest = std::ranges::max(logits);
  double entropy = std::log(reference::softmax(logits, largest, weights));
  for (size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] > 0) entropy -= weights[j] * (logits[j] - largest);
  }
  return std::min(entropy, std::log(static_cast<double>(logits.size())));  // but for rounding, it is
}

}  // namespace

AttentionProfile attention_profile(const traces::Layer& layer, int64_t head, int64_t sinks) {
  if (sinks < 1) throw ShapeMismatch(fmt::format("the first {} positions are no sinks", sinks));
  const int64_t entries = layer.keys.view().rows, steps = entries - layer.prompt_tokens;
  std::vector<double> memory(entries), received(entries);
  AttentionProfile profile;
  visit_query_logits(layer, head, steps, [&](int64_t, VectorView logits) {
    const auto weights = std::span(memory).first(logits.size());
    const double entropy = softmax_entropy(logits, weights);
    profile.entropy += entropy;
    if (logits.size() > 1) profile.relative_entropy += entropy / std::log(static_cast<double>(logits.size()));
    const auto first = std::min(sinks, std::ssize(weights));
    profile.sink_mass += std::accumulate(weights.begin(), weights.begin() + first, 0.0);
    for (size_t j = 0; j < weights.size(); ++j) received[j] += weights[j];
  });
  const auto queries = static_cast<double>(layer.window_queries + steps);
  const auto top = std::ranges::max_element(received);  // the first of the largest
  profile.top_position = top - received.begin();
  // Sums of weights may exceed 1 by their rounding.
  profile.top_mass = std::min(*top / queries, 1.0);
  profile.sink_mass = std::min(profile.sink_mass / queries, 1.0);
  profile.entropy /= queries;
  profile.relative_entropy = std::min(profile.relative_entropy / queries, 1.0);
  profile.effective_entries = std::exp(profile.entropy);
  return profile;
}

}  // namespace kvbound::sim
