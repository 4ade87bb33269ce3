#include <filesystem>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/dump.hpp>
#include <kvbound/sim/replay/dump_targets.hpp>
#include <kvbound/traces/safetensors.hpp>

#include "support/random_layer.hpp"
#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::dump_test {
namespace {

using test::matrix;
using test::message_of;
using test::TemporaryFolder;

Run run_of(const std::string& policy, const std::string& budget) {
  return {{policy, parse_policy(policy)}, parse_budget(budget), "reference"};
}

// The dump targets of a command with this many runs, each with its own budget, and no other outputs.
DumpTargets targets_for(const std::string& target, const std::vector<std::string>& traces, int runs) {
  std::vector<Run> all;
  for (int i = 0; i < runs; ++i) all.push_back(run_of("snapkv", std::to_string(256 + i)));
  OutputPaths outputs;
  return DumpTargets(target, traces, all, outputs);
}

TEST(DumpName, IsPolicyBudgetAndBackend) {
  EXPECT_EQ(dump_name(run_of("snapkv", "256")), "snapkv_window=32_pool=7@256@reference.safetensors");
  EXPECT_EQ(dump_name(run_of("snapkv+critical:alpha=adaptive", "2.5%")),
            "snapkv_window=32_pool=7+critical_alpha=adaptive_epsilon=1e-4_gqa=mean-of-products_norm=l1@2.5%@"
            "reference."
            "safetensors");
}

TEST(DumpName, KeepsLettersDigitsAndAFewMarksOnly) {
  auto run = run_of("snapkv", "256");
  run.backend = "a/b\\c d\n\xc3\xa9~=.+@%-Z9";
  EXPECT_EQ(dump_name(run), "snapkv_window=32_pool=7@256@a_b_c_d____=.+@%-Z9.safetensors");
}

TEST(DumpName, OfALongPolicyIsCutAndStaysItsOwn) {
  const std::string whole = dump_name(run_of("snapkv+critical:alpha=adaptive+keepkv", "20%"));
  EXPECT_EQ(whole.size(), 255u);
  EXPECT_EQ(whole.find('~'), std::string::npos);
  const std::string cut = dump_name(run_of("snapkv+critical:alpha=adaptive+adakv+keepkv", "20%"));
  const std::string other = dump_name(run_of("snapkv+critical:alpha=adaptive+adakv+keepkv:rank=0.25", "20%"));
  EXPECT_EQ(cut.size(), 255u);
  EXPECT_TRUE(cut.ends_with("@20%@reference.safetensors"));
  const size_t mark = cut.find('~');
  EXPECT_EQ(cut.substr(0, mark), other.substr(0, mark));
  EXPECT_NE(cut, other);
}

TEST(DumpTargets, OfOneDumpAreThatFileUnlessAFolderIsMeant) {
  const TemporaryFolder folder;
  const auto run = run_of("snapkv", "256");
  EXPECT_EQ(targets_for(folder.path("out"), {"a.safetensors"}, 1).path(0, run), folder.path("out"));
  EXPECT_EQ(targets_for(folder.path("out/"), {"a.safetensors"}, 1).path(0, run),
            folder.path("out/" + dump_name(run)));
  EXPECT_EQ(targets_for(folder.path(), {"a.safetensors"}, 1).path(0, run), folder.path(dump_name(run)));
}

TEST(DumpTargets, OfSeveralTracesAreFoldersNamedLikeThem) {
  const TemporaryFolder folder;
  const auto run = run_of("snapkv", "256");
  const DumpTargets targets = targets_for(folder.path("out"), {"x/a.safetensors", "y/b.safetensors"}, 2);
  EXPECT_EQ(targets.path(0, run), folder.path("out/a/" + dump_name(run)));
  EXPECT_EQ(targets.path(1, run), folder.path("out/b/" + dump_name(run)));
  EXPECT_EQ(message_of<UsageError>([&] {
              targets_for(folder.path("out"), {"x/a.safetensors", "y/a.safetensors"}, 1);
            }),
            "--dump: two traces are called 'a', so their dump folders would be the same");
}

TEST(DumpTargets, RefuseAFileWhereAFolderIsNeeded) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "precious");
  EXPECT_EQ(message_of<UsageError>([&] { targets_for(file, {"a.safetensors"}, 2); }),
            "--dump '" + file + "': several dumps need a folder, but this is not one");
  EXPECT_EQ(targets_for(file, {"a.safetensors"}, 1).path(0, run_of("snapkv", "256")), file)
      << "one dump replaces it";
}

TEST(DumpTargets, RemoveTheFoldersTheyMadeIfTheyAreEmpty) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path("there"));
  for (const bool full : {false, true}) {
    {
      DumpTargets targets =
          targets_for(folder.path("there/new/newer"), {"a.safetensors", "b.safetensors"}, 1);
      targets.make_folders();
      EXPECT_TRUE(std::filesystem::is_directory(folder.path("there/new/newer/b")));
      if (full) folder.write("there/new/newer/b/dump", "x");
    }
    EXPECT_EQ(std::filesystem::exists(folder.path("there/new/newer/b/dump")), full);
    EXPECT_EQ(std::filesystem::exists(folder.path("there/new")), full);
    EXPECT_FALSE(std::filesystem::exists(folder.path("there/new/newer/a")));
    EXPECT_TRUE(std::filesystem::exists(folder.path("there")));
  }
}

TEST(DumpTargets, SayWhyAFolderCannotBeMade) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  EXPECT_EQ(message_of<IoError>([&] { targets_for(file + "/new", {"a.safetensors"}, 2).make_folders(); }),
            "cannot create folder " + file + "/new: Not a directory");
  EXPECT_EQ(folder.size(), 1);
}

TEST(DumpTargets, NeverReplaceAnotherFileOfTheCommand) {
  const TemporaryFolder folder;
  const auto run = run_of("snapkv", "256");
  const std::string file = folder.path(dump_name(run));
  OutputPaths outputs;
  outputs.add_input(file);
  EXPECT_EQ(message_of<UsageError>([&] { DumpTargets(folder.path() + "/", {file}, {run}, outputs); }),
            "--dump: '" + file + "' is an input");
}

TEST(DumpTargets, HaveNoFolderOutsideTheTarget) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of<UsageError>([&] {
              targets_for(folder.path(), {"a.safetensors", "...safetensors"}, 1);
            }),
            "--dump: a trace called '...safetensors' can have no folder of that name");
}

TEST(DumpTargets, OfOneDumpNeedItsFolder) {
  const TemporaryFolder folder;
  const std::string file = folder.path("missing/out");
  EXPECT_EQ(message_of<IoError>([&] { targets_for(file, {"a.safetensors"}, 1); }),
            "cannot create " + file + ": there is no folder " + folder.path("missing"));
}

LayerRecord record_of_one_step() {
  LayerRecord record;
  record.prompt.kept = {{1, 2}, {0, 2}};
  record.prompt.score_positions = {0, 1};
  record.prompt.score = matrix({{0.25, 0.75}, {0.5, 0.125}});
  record.steps.push_back({matrix({{1.5}, {-2.5}}), {}});
  return record;
}

LayerMetrics metrics_of_one_step() {
  LayerMetrics metrics;
  metrics.perturbation = matrix({{1, 2}});
  metrics.kept_mass = matrix({{0.5, 0.75}});
  metrics.bound = matrix({{3, 4}});
  metrics.layer_perturbation = {5};
  return metrics;
}

TEST(Dump, HoldsWhatWasRecordedAndWhereItCameFrom) {
  const TemporaryFolder folder;
  traces::TraceInfo trace;
  trace.shape = {2, 2, 1, 1};
  trace.storage = Dtype::bf16;
  Dump dump(run_of("snapkv:window=1", "2"), trace, "c0ffee", folder.path());
  EXPECT_EQ(folder.size(), 0) << "what is spooled has no name";
  dump.add(7, record_of_one_step());
  dump.add(7, metrics_of_one_step());
  const std::string path = folder.path("dump.safetensors");
  dump.prepare(path);
  EXPECT_FALSE(std::filesystem::exists(path));
  dump.commit();
  EXPECT_EQ(folder.size(), 1);

  const traces::SafetensorsFile file(path, 1 << 20);
  EXPECT_EQ(file.metadata().strings, (decltype(file.metadata().strings){{"format", "kvbound-dump"},
                                                                        {"version", "1"},
                                                                        {"policy", "snapkv:window=1:pool=7"},
                                                                        {"budget", "2"},
                                                                        {"backend", "reference"},
                                                                        {"storage", "BF16"},
                                                                        {"accumulate", "F64"},
                                                                        {"trace_sha256", "c0ffee"}}));
  const auto integers = [&](const char* name) {
    const traces::TensorEntry* entry = file.find(std::string("layers.7.") + name);
    std::vector<int64_t> numbers(entry ? static_cast<size_t>(entry->elements) : 0);
    if (entry) file.read(*entry, 0, std::span<int64_t>(numbers));
    return numbers;
  };
  const auto reals = [&](const char* name, const std::vector<int64_t>& shape) {
    const traces::TensorEntry* entry = file.find(std::string("layers.7.") + name);
    EXPECT_TRUE(entry && entry->shape == shape) << name;
    std::vector<double> numbers(entry ? static_cast<size_t>(entry->elements) : 0);
    if (entry) file.read(*entry, 0, std::span<double>(numbers));
    return numbers;
  };
  using Integers = std::vector<int64_t>;
  using Reals = std::vector<double>;
  EXPECT_EQ(integers("kept"), (Integers{1, 2, 0, 2}));
  EXPECT_EQ(integers("kept_offsets"), (Integers{0, 2, 4}));
  EXPECT_EQ(integers("score_positions"), (Integers{0, 1}));
  EXPECT_EQ(reals("score", {2, 2}), (Reals{0.25, 0.75, 0.5, 0.125}));
  EXPECT_EQ(reals("output", {1, 2, 1}), (Reals{1.5, -2.5}));
  EXPECT_EQ(reals("perturbation", {1, 2}), (Reals{1, 2}));
  EXPECT_EQ(reals("kept_mass", {1, 2}), (Reals{0.5, 0.75}));
  EXPECT_EQ(reals("bound", {1, 2}), (Reals{3, 4}));
  EXPECT_EQ(reals("layer_perturbation", {1}), Reals{5});
  EXPECT_EQ(file.tensors().size(), 9u) << "no stage two and no norms without a selection that has them";
}

TEST(Dump, ThatIsNotCommittedLeavesNoFile) {
  const TemporaryFolder folder;
  traces::TraceInfo trace;
  trace.shape = {2, 2, 1, 1};
  {
    Dump dump(run_of("snapkv:window=1", "2"), trace, "", folder.path());
    dump.add(0, record_of_one_step());
    dump.add(0, metrics_of_one_step());
    dump.prepare(folder.path("dump.safetensors"));
    EXPECT_EQ(folder.size(), 1) << "the temporary file";
  }
  EXPECT_EQ(folder.size(), 0);
  EXPECT_THROW(Dump(run_of("snapkv", "2"), trace, "", folder.path("missing")), IoError);
}

}  // namespace
}  // namespace kvbound::sim::dump_test
