// A folder with two small traces, and a sweep over them.
#pragma once

#include <string>

#include <kvbound/sim/sweep/sweep.hpp>
#include <kvbound/traces/generate.hpp>

#include "safetensors_bytes.hpp"

namespace kvbound::test {

/// The traces a.safetensors (3 layers) and b.safetensors (2 layers) of 40 tokens and 2 decode steps.
class SweepCase : public TemporaryFolder {
 public:
  SweepCase() {
    for (const int64_t layers : {3, 2}) {
      traces::GenerateOptions options{
          .tokens = 40, .decode = 2, .layers = layers, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
      options.model_dim = 16;
      options.window_queries = 8;
      options.seed = layers;
      traces::generate(options, path(layers == 3 ? "a.safetensors" : "b.safetensors"));
    }
  }

  static constexpr const char* kPolicies =
      R"("snapkv:window=4", "snapkv:window=4+critical", "h2o:window=4+keepkv")";

  /// more  further members of the plan: `, "steps": 1`
  sim::Sweep sweep(const std::string& policies = kPolicies, const std::string& more = "") const {
    const std::string plan =
        write("plan.json", R"({"format": "kvbound-sweep-plan", "version": 1, "traces": [")" +
                               path("*.safetensors") + R"("], "policies": [)" + policies +
                               R"(], "budgets": ["30%", "12"])" + more + "}");
    return sim::resolve(sim::read_plan(plan), nullptr, {}, {});
  }
};

}  // namespace kvbound::test
