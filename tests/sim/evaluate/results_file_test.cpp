// Results that survive the program: what is read back, what is refused, what a death in mid-write leaves.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/results_file.hpp>
#include <kvbound/sim/evaluate/task_result_json.hpp>

#include "support/message_of.hpp"
#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::results_file_test {
namespace {

using test::message_of;
using Document = nlohmann::ordered_json;

const Document kEvaluation{{"model", "abc"}, {"runs", {"snapkv 20%"}}, {"window", 128}};

TaskResult result_of(const std::string& id) {
  TaskResult result;
  result.id = id;
  result.steps = 2;
  result.full_nll = {0.1, 1.0 / 3, 1e-300};
  result.full_top1 = {3, 0, 49151};
  RunFigures run;
  run.kl = {0, 0x1.fffffffffffffp-20, 12.5};
  run.nll = {0.1, 2, 3};
  run.top1 = {3, 1, 2};
  run.hidden_error = {0.25, 1.0 / 7};
  run.entries = {10, 11};
  run.stored_entries = {10, 21.5};
  run.open_loop.perturbation = 2.0 / 3;
  run.open_loop.kept_mass = 0.875;
  run.violations = 4;
  result.runs = {run};
  result.prefill_seconds = 0.125;
  return result;
}

class ResultsFileTest : public testing::Test {
 protected:
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string message() const {
    return message_of<TraceError>([&] { ResultsFile(path_, kEvaluation); });
  }
  test::TemporaryFolder folder_;
  const std::string path_ = folder_.path("results");
};

TEST_F(ResultsFileTest, ReadsBackWhatWasAddedWithTheSameBits) {
  {
    ResultsFile file(path_, kEvaluation);
    EXPECT_EQ(file.size(), 0U);
    file.add(result_of("a"));
    file.add(result_of("b \"quoted\"\n"));
    EXPECT_NE(file.find("a"), nullptr);
  }
  const ResultsFile file(path_, kEvaluation);
  EXPECT_EQ(file.size(), 2U);
  EXPECT_EQ(file.find("c"), nullptr);
  ASSERT_NE(file.find("b \"quoted\"\n"), nullptr);
  EXPECT_EQ(to_json(*file.find("a")), to_json(result_of("a")));
  const RunFigures& run = file.find("a")->runs.front();
  EXPECT_EQ(run.kl, result_of("a").runs.front().kl);
  EXPECT_EQ(run.open_loop.perturbation, 2.0 / 3);
  EXPECT_FALSE(run.open_loop.bound) << "what was not measured stays so";
}

TEST_F(ResultsFileTest, DropsALineThatWasCutOff) {
  { ResultsFile(path_, kEvaluation).add(result_of("a")); }
  const std::string whole = text();
  for (const size_t cut : {size_t{1}, size_t{40}, whole.size() - whole.find('\n') - 2}) {
    write(whole + whole.substr(whole.find('\n') + 1, cut));
    ResultsFile file(path_, kEvaluation);
    EXPECT_EQ(file.size(), 1U);
    EXPECT_EQ(text(), whole);
    file.add(result_of("b"));
    EXPECT_EQ(text().substr(0, whole.size()), whole);
  }
  write(whole.substr(0, 20));  // died while the first line was written
  EXPECT_EQ(ResultsFile(path_, kEvaluation).size(), 0U);
}

TEST_F(ResultsFileTest, RefusesAnotherEvaluationAndNamesTheDifference) {
  { ResultsFile(path_, kEvaluation).add(result_of("a")); }
  Document other = kEvaluation;
  other["window"] = 64;
  EXPECT_EQ(message_of<TraceError>([&] { ResultsFile(path_, other); }),
            path_ + ": window: is 128 in these results and 64 now: they are of another evaluation");
}

TEST_F(ResultsFileTest, RefusesOtherFilesAndLeavesThemAsTheyAre) {
  for (const std::string& foreign :
       {std::string("dear diary"), std::string("{\"format\":\"other\"}\n"), std::string("\n"),
        std::string("{\"format\":\"kvbound-evaluate-results\"}\n")}) {
    write(foreign);
    EXPECT_NE(message().find("line 1"), std::string::npos) << foreign;
    EXPECT_EQ(text(), foreign);
  }
}

TEST_F(ResultsFileTest, RefusesALineThatIsNoResult) {
  { ResultsFile(path_, kEvaluation).add(result_of("a")); }
  const std::string whole = text();
  for (const char* line : {"{}\n", "[1]\n", "{\"id\":3}\n", "\n", "{\"id\":\"a\"\n"}) {
    write(whole + line + whole.substr(whole.find('\n') + 1));
    EXPECT_NE(message().find("line 3"), std::string::npos) << line;
  }
}

TEST_F(ResultsFileTest, RefusesNumbersOfAnotherKindOrSign) {
  const auto refused = [&](const char* member, const Document& value, const std::string& words) {
    Document line = to_json(result_of("a"));
    (line["runs"][0].contains(member) ? line["runs"][0] : line)[member] = value;
    { const ResultsFile fresh(path_, kEvaluation); }
    const std::string header = text().substr(0, text().find('\n') + 1);
    write(header + line.dump() + "\n");
    EXPECT_NE(message().find("line 2: is no line of a results file: " + std::string(member) + " is " + words),
              std::string::npos)
        << message();
    write(header);
  };
  refused("kl", {0, -1, 2}, "-1.0; expected a number >= 0");
  refused("nll", {0, nullptr, 2}, "null; expected a number");
  refused("top1", {1, 2.5, 3}, "2.5; expected an integer");
  refused("top1", {1, -2, 3}, "-2; expected a number >= 0");
  refused("top1", {1, UINT64_MAX, 3}, "18446744073709551615; expected an integer");
  refused("entries", 4, "4; expected a list");
  refused("recall", "much", "\"much\"; expected a number");
  refused("steps", 1.5, "1.5; expected an integer");
  refused("id", 7, "7; expected a text");
}

TEST_F(ResultsFileTest, IsUsedByOneProgramAtATime) {
  const ResultsFile file(path_, kEvaluation);
  EXPECT_NE(message_of<IoError>([&] { ResultsFile(path_, kEvaluation); }).find("another process"),
            std::string::npos);
}

}  // namespace
}  // namespace kvbound::sim::results_file_test
