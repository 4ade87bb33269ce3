// Sweeps: traces are found, checked and hashed once, and survive as text.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/sweep/sweep.hpp>

#include "support/message_of.hpp"
#include "support/sweep_case.hpp"

namespace kvbound::sim::sweep_test {
namespace {

using ::testing::HasSubstr;

TEST(Sweeps, HaveTheTracesOfTheirPatternsByNameWithTheirHashes) {
  const test::SweepCase folder;
  const Sweep sweep = folder.sweep();
  ASSERT_EQ(sweep.traces.size(), 2);
  EXPECT_EQ(sweep.traces[0].info.path, folder.path("a.safetensors"));
  EXPECT_EQ(sweep.traces[1].info.path, folder.path("b.safetensors"));
  EXPECT_EQ(sweep.traces[0].sha256, traces::Trace(folder.path("a.safetensors")).sha256());
  EXPECT_EQ(sweep.traces[0].scope.layers, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(sweep.traces[0].scope.steps, 2);
  EXPECT_EQ(sweep.traces[0].scope.recall_of, 40);
  EXPECT_EQ(sweep.runs.size(), 6);
}

TEST(Sweeps, AreTheSameAfterTheirText) {
  const test::SweepCase folder;
  const Sweep sweep =
      folder.sweep(test::SweepCase::kPolicies, R"(, "base": "tova", "layers": "1", "layers_per_item": 2)");
  const Sweep read = parse_sweep("p", text_of(sweep));
  EXPECT_EQ(text_of(read), text_of(sweep));
  EXPECT_EQ(read.traces[1].info.shape.model_dim, 16);
  EXPECT_EQ(read.traces[1].info.scale, sweep.traces[1].info.scale);
  EXPECT_EQ(read.traces[1].scope.layers, std::vector<int64_t>{1});
  EXPECT_EQ(read.runs[1].policy.label, sweep.runs[1].policy.label);
  EXPECT_EQ(read.base, sweep.base);
  EXPECT_EQ(read.layers_per_item, 2);
}

TEST(Sweeps, AreNotReadFromOtherTexts) {
  const test::SweepCase folder;
  const std::string text = text_of(folder.sweep());
  for (const std::string& other :
       {std::string(), std::string("{}"), text.substr(0, text.size() / 2), std::string("[1]")})
    EXPECT_THAT(test::message_of<TraceError>([&] { parse_sweep("p", other); }),
                HasSubstr("p: is no sweep of kvbound"))
        << other;
}

TEST(Sweeps, AreNotReadIfTheySayWhatNoPlanGives) {
  const test::SweepCase folder;
  const std::string text = text_of(folder.sweep());
  const auto refusal = [&](const auto& change) {
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
    change(json);
    return test::message_of<TraceError>([&] { parse_sweep("p", json.dump()); });
  };
  const std::string none = "p: is no sweep of kvbound: it has ";
  EXPECT_THAT(refusal([](auto& json) { json["layers_per_item"] = 0; }),
              HasSubstr(none + "items of no layers"));
  EXPECT_THAT(refusal([](auto& json) { json["policies_per_item"] = -1; }),
              HasSubstr(none + "items of no layers"));
  EXPECT_EQ(refusal([](auto& json) { json["computation"] = 1; }),
            "p: is no sweep of kvbound: computation is 1; expected an object");
  EXPECT_EQ(refusal([](auto& json) { json["version"] = 2; }),
            "p: is no sweep of kvbound: version is 2; expected 1");
  EXPECT_THAT(refusal([](auto& json) { json["runs"].clear(); }), HasSubstr(none + "no runs"));
  EXPECT_THAT(refusal([](auto& json) { json["runs"][0]["backend"] = "rocm"; }),
              HasSubstr(none + "a backend that is unknown"));
  EXPECT_THAT(refusal([](auto& json) { json["runs"][0] = json["runs"][1]; }),
              HasSubstr(none + "a run twice"));
  EXPECT_THAT(refusal([](auto& json) { json["traces"].clear(); }), HasSubstr(none + "no runs or traces"));
  EXPECT_THAT(refusal([](auto& json) {
                json["traces"][0]["scope"]["layers"] = {0, 3};
              }),
              HasSubstr(none + "layers that"));
  EXPECT_THAT(refusal([](auto& json) {
                json["traces"][0]["scope"]["layers"] = {1, 1};
              }),
              HasSubstr(none + "layers that"));
  EXPECT_THAT(refusal([](auto& json) { json["traces"][0]["scope"]["steps"] = 3; }),
              HasSubstr(none + "steps that"));
  for (const int64_t layers : {int64_t{0}, int64_t{1} << 28, int64_t{1} << 62})
    EXPECT_THAT(refusal([layers](auto& json) { json["traces"][0]["info"]["layers"] = layers; }),
                HasSubstr("layers is " + std::to_string(layers) + "; expected 1 to 1048576"));
  EXPECT_THAT(refusal([](auto& json) { json["traces"][0]["info"]["prompt_tokens"] = INT64_MAX; }),
              HasSubstr("prompt_tokens is 9223372036854775807; expected 1 to 2147483647"));
  EXPECT_THAT(refusal([](auto& json) { json["runs"] = std::vector(100'001, json["runs"][0]); }),
              HasSubstr(none + "too many runs"));
  EXPECT_THAT(refusal([](auto& json) {
                json["traces"][0]["info"]["layers"] = 1'000'000;
                auto& layers = json["traces"][0]["scope"]["layers"] = nlohmann::ordered_json::array();
                for (int l = 0; l < 1'000'000; ++l) layers.push_back(l);
                json["traces"] = std::vector(5, json["traces"][0]);
              }),
              HasSubstr(none + "more than 4194304 items"));
  EXPECT_THAT(refusal([](auto& json) { json["traces"][0]["info"].erase("scale"); }),
              HasSubstr("scale is missing"));
  EXPECT_EQ(refusal([](auto&) {}), "no error");
}

TEST(Sweeps, HashOnlyWhatHasChanged) {
  const test::SweepCase folder;
  Sweep earlier = folder.sweep();
  for (SweepTrace& trace : earlier.traces) trace.sha256 = "known";
  std::filesystem::last_write_time(folder.path("b.safetensors"),
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const Sweep again = resolve(read_plan(folder.path("plan.json")), &earlier, {}, {});
  EXPECT_EQ(again.traces[0].sha256, "known");
  EXPECT_EQ(again.traces[1].sha256, traces::Trace(folder.path("b.safetensors")).sha256());
}

TEST(Sweeps, RefuseTracesThatChangedSince) {
  const test::SweepCase folder;
  const Sweep sweep = folder.sweep();
  EXPECT_EQ(open_trace(sweep, sweep.traces[0]).info().layers, 3);
  std::filesystem::last_write_time(folder.path("a.safetensors"),
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_THAT(test::message_of<TraceError>([&] { open_trace(sweep, sweep.traces[0]); }),
              HasSubstr("has changed since the sweep was planned"));
}

TEST(OpenTraces, StayOpenUntilAnotherIsWantedOrTheyChange) {
  const test::SweepCase folder;
  const Sweep sweep = folder.sweep();
  OpenTraces traces(sweep);
  EXPECT_EQ(traces.of(0).info().layers, 3);
  // A header that is damaged without a trace of it in the file's time is noticed only
  // by whoever reads it again.
  const std::string path = folder.path("a.safetensors");
  const auto time = std::filesystem::last_write_time(path);
  const auto write_first_bytes = [&](const std::string& bytes) {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << bytes;
    std::filesystem::last_write_time(path, time);
  };
  std::string header(8, '\0');
  std::ifstream(path, std::ios::binary).read(header.data(), 8);
  write_first_bytes(std::string(8, '\xff'));
  EXPECT_EQ(traces.of(0).info().layers, 3) << "still open";
  traces.close();
  EXPECT_THROW(traces.of(0), TraceError) << "opened again";
  write_first_bytes(header);
  EXPECT_EQ(traces.of(0).info().layers, 3);
  EXPECT_EQ(traces.of(1).info().layers, 2);
  EXPECT_EQ(traces.of(0).info().layers, 3);
  std::filesystem::last_write_time(folder.path("a.safetensors"),
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_THAT(test::message_of<TraceError>([&] { traces.of(0); }),
                HasSubstr("has changed since the sweep was planned"));
  }
  EXPECT_EQ(traces.of(1).info().layers, 2);
  std::filesystem::remove(folder.path("b.safetensors"));
  EXPECT_THROW(traces.of(1), Error);
}

TEST(Sweeps, RefuseWhatDoesNotFitTheTraces) {
  const test::SweepCase folder;
  const auto refusal = [&](const std::string& policies, const std::string& more) {
    try {
      folder.sweep(policies, more);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  const std::string policies = test::SweepCase::kPolicies;
  EXPECT_THAT(refusal(policies, R"(, "layers": "0,2")"), HasSubstr("layers: is \"0,2\""));
  EXPECT_THAT(refusal(policies, R"(, "steps": 3)"), HasSubstr("has 2 decode steps"));
  EXPECT_THAT(refusal(R"("snapkv:window=9")", ""),
              HasSubstr("a.safetensors: policy 'snapkv:window=9' at budget 30%"));
  EXPECT_THAT(refusal(policies, R"(, "backends": ["abacus"])"), HasSubstr("abacus"));
  const auto with_traces = [&](const std::string& patterns) {
    const std::string plan = folder.write(
        "other.json",
        R"({"format": "kvbound-sweep-plan", "version": 1, "policies": ["tova"], "budgets": ["12"], "traces": [)" +
            patterns + "]}");
    return test::message_of<TraceError>([&] { resolve(read_plan(plan), nullptr, {}, {}); });
  };
  EXPECT_THAT(with_traces(R"("nothing*")"), HasSubstr("traces: \"nothing*\": no file has such a name"));
  EXPECT_THAT(with_traces('"' + folder.path("a*") + R"(", ")" + folder.path("*.safetensors") + '"'),
              HasSubstr("is listed twice"));
  EXPECT_THAT(with_traces('"' + folder.path("*.json") + '"'), HasSubstr("other.json"));
}

}  // namespace
}  // namespace kvbound::sim::sweep_test
