// A folder with two small traces, and a sweep over them.
#pragma once

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <kvbound/sim/sweep/sweep.hpp>
#include <kvbound/traces/generate.hpp>

namespace kvbound::test {

/// A new folder that is removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvbound-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

/// The traces a.safetensors (3 layers) and b.safetensors (2 layers) of 40 tokens and 2 decode steps.
class SweepCase : public ScratchFolder {
 public:
  SweepCase() {
    for (const int64_t layers : {3, 2}) {
      traces::GenerateOptions options{
          .tokens = 40, .decode = 2, .layers = layers, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
      options.model_dim = 16;
      options.window_queries = 8;
      options.seed = layers;
      traces::generate(options, file(layers == 3 ? "a.safetensors" : "b.safetensors"));
    }
  }

  static constexpr const char* kPolicies =
      R"("snapkv:window=4", "snapkv:window=4+critical", "h2o:window=4+keepkv")";

  /// more  further members of the plan: `, "steps": 1`
  sim::Sweep sweep(const std::string& policies = kPolicies, const std::string& more = "") const {
    const std::string plan =
        write("plan.json", R"({"format": "kvbound-sweep-plan", "version": 1, "traces": [")" +
                               file("*.safetensors") + R"("], "policies": [)" + policies +
                               R"(], "budgets": ["30%", "12"])" + more + "}");
    return sim::resolve(sim::read_plan(plan), nullptr, {});
  }
};

}  // namespace kvbound::test
