// Plans: what is read, and how plans that are none are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/sweep/plan.hpp>

#include "support/sweep_case.hpp"

namespace kvbound::sim::plan_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kStart = R"({"format": "kvbound-sweep-plan", "version": 1)";

class Plans : public ::testing::Test {
 protected:
  SweepPlan plan(const std::string& text) const { return read_plan(folder_.write("plan.json", text)); }
  std::string refusal(const std::string& text) const {
    try {
      plan(text);
    } catch (const TraceError& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(folder_.path("plan.json"))) << message;
      return message;
    }
    return "not refused";
  }
  // A plan with further members besides traces, policies and budgets.
  static std::string with(const std::string& members) {
    return std::string(kStart) + R"(, "traces": ["a"], "policies": ["snapkv"], "budgets": ["20%"], )" +
           members + "}";
  }

  test::TemporaryFolder folder_;
};

TEST_F(Plans, HaveTheDefaultsOfReplay) {
  const SweepPlan found =
      plan(std::string(kStart) +
           R"(, "traces": ["a", "b*"], "policies": ["snapkv", "h2o"], "budgets": ["20%", "12"]})");
  EXPECT_EQ(found.traces, (std::vector<std::string>{"a", "b*"}));
  ASSERT_EQ(found.policies.size(), 2);
  EXPECT_EQ(found.policies[1].label, "h2o");
  EXPECT_EQ(found.budgets, (std::vector{parse_budget("20%"), parse_budget("12")}));
  EXPECT_EQ(found.backends, std::vector<std::string>{"reference"});
  EXPECT_FALSE(found.base || found.layers || found.steps || found.policies_per_item || found.merge_bounds);
  EXPECT_EQ(found.heads, traces::CacheHeads::kv);
  EXPECT_EQ(found.recall_of, 40);
  EXPECT_EQ(found.layers_per_item, 1);
}

TEST_F(Plans, SayEverythingElse) {
  const SweepPlan found =
      plan(with(R"("base": "tova", "backends": ["reference", "emulated"], "layers": "0,2-3", "steps": 5,
    "heads": "query", "recall": 7, "merge_bounds": true, "layers_per_item": 2, "policies_per_item": 3)"));
  EXPECT_EQ(canonical(*found.base), canonical(parse_policy("tova")));
  EXPECT_EQ(found.policies.front().label, "tova") << "a base comes first";
  EXPECT_EQ(found.policies.size(), 2);
  EXPECT_EQ(found.backends.size(), 2);
  EXPECT_EQ(found.layers, "0,2-3");
  EXPECT_EQ(found.steps, 5);
  EXPECT_EQ(found.heads, traces::CacheHeads::query);
  EXPECT_EQ(found.recall_of, 7);
  EXPECT_TRUE(found.merge_bounds);
  EXPECT_EQ(found.layers_per_item, 2);
  EXPECT_EQ(found.policies_per_item, 3);
}

TEST_F(Plans, RunPoliciesThatDrawWithEverySeedAndOthersOnce) {
  const SweepPlan found =
      plan(std::string(kStart) + R"(, "traces": ["a"], "budgets": ["20%"], "seeds": [0, 7],
    "policies": ["snapkv", "random", "h2o+cam:neighbours=4"]})");
  std::vector<std::string> names;
  for (const NamedPolicy& policy : found.policies) names.push_back(policy.label);
  EXPECT_EQ(names, (std::vector<std::string>{"snapkv", "random:seed=0:sinks=4:window=32",
                                             "random:seed=7:sinks=4:window=32",
                                             "h2o:window=32:sinks=0:recent=32+cam:neighbours=4:seed=0",
                                             "h2o:window=32:sinks=0:recent=32+cam:neighbours=4:seed=7"}));
}

TEST_F(Plans, ThatAreNoneAreRefusedWithTheMember) {
  EXPECT_THAT(refusal(""), HasSubstr("plan.json"));
  EXPECT_THAT(refusal("[]"), HasSubstr("expected"));
  EXPECT_THAT(refusal(R"({"version": 1})"), HasSubstr("format: is missing"));
  EXPECT_THAT(
      refusal(
          R"({"format": "kvbound-trace", "version": 1, "traces": ["a"], "policies": ["snapkv"], "budgets": ["1"]})"),
      HasSubstr("format: is \"kvbound-trace\"; expected kvbound-sweep-plan"));
  EXPECT_THAT(refusal(std::string(kStart) + R"(, "traces": [], "policies": ["snapkv"], "budgets": ["1"]})"),
              HasSubstr("traces: is an array; expected a list that is not empty"));
  EXPECT_THAT(refusal(with(R"("version": 1)")), HasSubstr("version"));
  EXPECT_THAT(refusal(with(R"("polices": [])")),
              HasSubstr("member \"polices\" is unknown; the members of a plan are format, "));
  EXPECT_THAT(refusal(with(R"("steps": 0)")), HasSubstr("steps: is 0; expected an integer from 1"));
  EXPECT_THAT(refusal(with(R"("steps": -3)")), HasSubstr("steps: is -3; expected"));
  EXPECT_THAT(refusal(with(R"("steps": "3")")), HasSubstr("steps: is \"3\"; expected"));
  EXPECT_THAT(refusal(with(R"("merge_bounds": 1)")), HasSubstr("merge_bounds: is 1; expected true or false"));
  EXPECT_THAT(refusal(with(R"("seeds": [1, 1])")), HasSubstr("seeds: item 1 is listed twice"));
  EXPECT_THAT(refusal(with(R"("base": "snapkvv")")), HasSubstr("base: "));
  EXPECT_THAT(refusal(with(R"("base": "random", "seeds": [3])")), HasSubstr("base: draws random numbers"));
  EXPECT_THAT(refusal(with(R"("backends": ["reference", "reference"])")),
              HasSubstr("backends: item 1 is listed twice"));
  EXPECT_THAT(refusal(std::string(kStart) + R"(, "traces": ["a"], "budgets": ["20%"], "seeds": [3],
    "policies": ["random:seed=1", "random:seed=2"]})"),
              HasSubstr("policies: 'random:seed=3:sinks=4:window=32' is listed twice, with its seed"));
  const auto other = [](const char* policies, const char* budgets) {
    return std::string(kStart) + R"(, "traces": ["a"], "policies": [)" + policies + R"(], "budgets": [)" +
           budgets + "]}";
  };
  EXPECT_THAT(refusal(other(R"("snapkv", "snapkv:window=32")", R"("1")")),
              HasSubstr("policies: policy 'snapkv:window=32' is given twice"));
  EXPECT_THAT(refusal(other(R"("nokv")", R"("1")")), HasSubstr("policies: "));
  EXPECT_THAT(refusal(other(R"("snapkv")", R"("20%", "20%")")), HasSubstr("budgets: item 1 is listed twice"));
  EXPECT_THAT(refusal(other(R"("snapkv")", R"("much")")), HasSubstr("budgets[0]: "));
  EXPECT_THAT(refusal(other(R"("snapkv")", "20")), HasSubstr("budgets[0]: is 20; expected a string"));
}

}  // namespace
}  // namespace kvbound::sim::plan_test
