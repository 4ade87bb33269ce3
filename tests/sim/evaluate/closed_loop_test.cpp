// A task in a closed loop: what keeps everything changes nothing, which tokens are predicted from
// where, what is measured.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/evaluate.hpp>
#include <kvbound/sim/evaluate/next_token.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/models/decoder.hpp>

#include "support/message_of.hpp"
#include "support/tiny_checkpoint.hpp"

namespace kvbound::sim::closed_loop_test {
namespace {

using Numbers = std::vector<double>;

const test::TinyCheckpoint kTiny;
const traces::Checkpoint& checkpoint() {
  static const traces::Checkpoint opened = kTiny.open();
  return opened;
}

Task task_of(int64_t prompt, int64_t target, int64_t compress_at) {
  Task task;
  task.id = "made up";
  for (int64_t i = 0; i < prompt; ++i)
    task.prompt.push_back((i * i + 3 * i) % test::TinyCheckpoint::kVocabulary);
  for (int64_t i = 0; i < target; ++i) task.target.push_back((7 * i + 5) % test::TinyCheckpoint::kVocabulary);
  task.compress_at = compress_at;
  return task;
}

EvaluateOptions options_of(const std::vector<std::string>& policies, const std::string& budget) {
  EvaluateOptions options;
  for (const std::string& policy : policies)
    options.runs.push_back({{policy, parse_policy(policy)}, parse_budget(budget), "reference"});
  options.window = 16;
  return options;
}

TaskResult result_of(const Task& task, const EvaluateOptions& options) {
  return run_closed_loop(checkpoint(), task, options, nullptr);
}

TEST(ClosedLoop, ThatKeepsEverythingChangesNothing) {
  for (const int64_t compress_at : {24, 20}) {
    const Task task = task_of(24, 6, compress_at);
    const TaskResult result = result_of(
        task,
        options_of({"snapkv:window=4", "snapkv:window=4+critical", "snapkv:window=4+keepkv:threshold=none",
                    "snapkv:window=4+keepkv:period=2", "snapkv:window=4+adakv", "random:sinks=1:window=2"},
                   "100%"));
    EXPECT_EQ(result.steps, 24 - compress_at + 5);
    for (const RunFigures& run : result.runs) {
      EXPECT_EQ(run.kl, Numbers(6, 0));
      EXPECT_EQ(run.nll, result.full_nll);
      EXPECT_EQ(run.top1, result.full_top1);
      EXPECT_EQ(run.hidden_error, Numbers(2, 0));
      EXPECT_LT(*run.open_loop.perturbation, 1e-12);
      EXPECT_NEAR(*run.open_loop.kept_mass, 1, 1e-15);
    }
  }
}

// A query head with a cache has the full cache of its KV head, and chooses alone.
TEST(ClosedLoop, OfQueryHeadsWithCachesHasTheSameFullCache) {
  const Task task = task_of(24, 6, 20);
  EvaluateOptions options = options_of({"h2o:window=4:recent=2+obcache-joint"}, "8");
  const TaskResult shared = result_of(task, options);
  options.heads = traces::CacheHeads::query;
  const TaskResult own = result_of(task, options);
  for (size_t i = 0; i < shared.full_nll.size(); ++i)
    EXPECT_NEAR(own.full_nll[i], shared.full_nll[i], 1e-5) << i;
  EXPECT_EQ(own.runs.front().entries, shared.runs.front().entries);
  EXPECT_NE(own.runs.front().kl, shared.runs.front().kl);
}

// The decoder that `record` runs gives the same likelihoods, all tokens read with one full cache.
TEST(ClosedLoop, OfTheFullCacheIsTheDecoder) {
  const Task task = task_of(24, 6, 19);
  const TaskResult result = result_of(task, options_of({"tova"}, "8"));
  traces::Decoder decoder(checkpoint(), 30, Dtype::f32);
  std::vector<float> logits = decoder.run(task.prompt, nullptr);
  for (size_t i = 0; i < task.target.size(); ++i) {
    EXPECT_NEAR(result.full_nll[i], negative_log_likelihood(logits, task.target[i]), 1e-5) << "token " << i;
    EXPECT_EQ(result.full_top1[i], most_likely(logits));
    logits = decoder.run({&task.target[i], 1}, nullptr);
  }
}

TEST(ClosedLoop, PredictsTheFirstTokenByThePrefillIfNothingOfThePromptIsLeft) {
  const EvaluateOptions options = options_of({"tova", "streaming-llm:sinks=1"}, "6");
  for (const RunFigures& run : result_of(task_of(24, 4, 24), options).runs) {
    EXPECT_EQ(run.kl[0], 0);
    EXPECT_GT(run.kl[1], 1e-6);
  }
  for (const RunFigures& run : result_of(task_of(24, 4, 23), options).runs) EXPECT_GT(run.kl[0], 1e-6);
}

TEST(ClosedLoop, GivesARunTheSameNumbersWhateverElseRuns) {
  const Task task = task_of(24, 6, 21);
  const std::vector<std::string> policies{"snapkv:window=4", "h2o:window=4:recent=2+keepkv:threshold=none",
                                          "tova"};
  const TaskResult together = result_of(task, options_of(policies, "50%"));
  for (size_t r = 0; r < policies.size(); ++r) {
    const TaskResult alone = result_of(task, options_of({policies[r]}, "50%"));
    EXPECT_EQ(alone.runs[0].kl, together.runs[r].kl);
    EXPECT_EQ(alone.runs[0].open_loop.perturbation, together.runs[r].open_loop.perturbation);
    EXPECT_EQ(alone.runs[0].hidden_error, together.runs[r].hidden_error);
  }
}

// Logits are formed 64 tokens at a time: those of a long target are those of its beginning
// alone, and of the decoder.
TEST(ClosedLoop, PredictsTargetsThatAreLongerThanItsLogitsAtATime) {
  const Task task = task_of(24, 140, 22);
  const TaskResult result = result_of(task, options_of({"snapkv:window=4"}, "100%"));
  traces::Decoder decoder(checkpoint(), 24 + 140, Dtype::f32);
  std::vector<float> logits = decoder.run(task.prompt, nullptr);
  ASSERT_EQ(result.full_nll.size(), task.target.size());
  for (size_t i = 0; i < task.target.size(); ++i) {
    EXPECT_NEAR(result.full_nll[i], negative_log_likelihood(logits, task.target[i]), 2e-5) << "token " << i;
    logits = decoder.run({&task.target[i], 1}, nullptr);
  }
  EXPECT_EQ(result.runs[0].nll, result.full_nll);
}

TEST(ClosedLoop, CountsEntriesOfEveryStep) {
  const TaskResult result = result_of(
      task_of(24, 4, 22), options_of({"snapkv:window=4", "tova", "snapkv:window=4+keepkv:period=2"}, "8"));
  EXPECT_EQ(result.runs[0].entries, (Numbers{9, 10, 11, 12, 13}));
  EXPECT_EQ(result.runs[0].stored_entries, result.runs[0].entries);
  EXPECT_EQ(result.runs[1].entries, (Numbers{9, 9, 9, 9, 9}));
  EXPECT_EQ(result.runs[2].entries, (Numbers{9, 10, 11, 12, 13}));
  EXPECT_EQ(result.runs[2].stored_entries, (Numbers{9 + 23, 10 + 24, 11 + 25, 12 + 26, 13 + 27}));
}

TEST(ClosedLoop, ReportsItsWork) {
  const Task task = task_of(24, 4, 22);
  const EvaluateOptions options = options_of({"tova", "snapkv:window=4"}, "8");
  int64_t done = 0;
  run_closed_loop(checkpoint(), task, options, [&](int64_t more) { done += more; });
  EXPECT_EQ(done, work_of(task, options, test::TinyCheckpoint::kLayers));
}

TEST(Evaluate, NamesTheTaskForWhichARunIsNotValid) {
  const auto message = [](const std::string& policy, const std::string& budget) {
    return test::message_of<InvalidPolicy>([&] {
      require_valid(options_of({policy}, budget), {task_of(24, 4, 24), task_of(24, 4, 10)},
                    checkpoint().config());
    });
  };
  EXPECT_EQ(
      message("snapkv:window=4", "3"),
      "task \"made up\": policy 'snapkv:window=4' at budget 3: budget of 3 entries is below the 4 of the "
      "observation window, which are always kept");
  EXPECT_NE(message("tova", "11").find("at budget 11"), std::string::npos) << "above the second task's 10";
  EXPECT_NE(message("snapkv:window=12", "12").find("window"), std::string::npos) << "10 queries";
}

}  // namespace
}  // namespace kvbound::sim::closed_loop_test
