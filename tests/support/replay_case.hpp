// A tested implementation, the reference's record, and what a replay says of claims.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/replay/layer_replay.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "session_cases.hpp"
#include "trace_layer.hpp"

namespace kvbound::test {

/// The record of a session with these inputs.
inline sim::LayerRecord recorded(const traces::Layer& layer, const Policy& policy, int64_t budget,
                                 int64_t steps) {
  const auto session = reference::make_session();
  sim::LayerRecord record;
  record.prompt = session->compress(layer.prompt(), policy, Positions(layer.shape.kv_heads, budget));
  for (int64_t t = 0; t < steps; ++t) record.steps.push_back(session->step(layer.step(t)));
  return record;
}

/// Double-precision arithmetic on inputs that were stored in single precision.
inline reference::Arithmetic single_precision_inputs() {
  reference::Arithmetic arithmetic = reference::double_precision();
  arithmetic.input = 0x1p-24;
  return arithmetic;
}

/// What a replay says of claims, and where it led.
struct ReplayJudgement {
  std::vector<sim::TensorAgreement> agreements;
  sim::LayerRecord record;
  sim::ReplayedOutputs outputs;
  sim::FollowedChoices followed;
};

struct ReplayCase {
  ReplayCase(traces::Layer layer_, const Policy& policy, int64_t budget, int64_t steps,
             const reference::Arithmetic& arithmetic = reference::double_precision())
      : layer(std::move(layer_)),
        implementation{policy, budget, steps, arithmetic, Dtype::f64},
        own(recorded(layer, policy, budget, steps)),
        errors(layer.prompt(), implementation, own.prompt),
        part{layer,  implementation, own.prompt,
             errors, layer.prompt(), sim::EvictionSizes(layer, implementation)},
        scores(nullptr) {
    const MergeRules rules = rules_of(policy.merge);
    if (!rules.averages()) return;
    part.averages = &scores.predicted(part.prompt, *rules.prediction);
    part.log_sum_exp_errors =
        reference::window_log_sum_exp_errors(part.prompt, part.prompt.window_queries(), arithmetic);
  }
  ReplayCase(const ReplayCase&) = delete;  // parts refer to each other
  ReplayCase& operator=(const ReplayCase&) = delete;

  /// Judges these claims; without claimed kept sets on the reference's.
  ReplayJudgement judge(const sim::LayerClaims& claims) const {
    return judge(claims, claims.kept.value_or(own.prompt.kept));
  }
  ReplayJudgement judge(const sim::LayerClaims& claims, const std::vector<Positions>& kept) const {
    sim::LayerReplay replay(layer, implementation, own.prompt, errors, kept, claims);
    sim::ReplayedOutputs outputs(layer.shape, implementation.steps);
    replay.run([&](const sim::AttendedCache& attended) { outputs.add(attended); });
    ReplayJudgement found{replay.agreements(), replay.record(&outputs), outputs, replay.followed()};
    const bool merges = rules_of(implementation.policy.merge).merges;
    if (claims.output) found.agreements.push_back(outputs.agreement(*claims.output, merges));
    return found;
  }

  traces::Layer layer;
  sim::TestedImplementation implementation;
  sim::LayerRecord own;
  sim::PromptErrors errors;
  sim::ReplayedLayer part;

 private:
  reference::LayerScores scores;
};

}  // namespace kvbound::test
