#include <algorithm>
#include <iostream>
#include <memory>

#include <fmt/format.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/sim/evaluate/evaluate_cubes.hpp>
#include <kvbound/sim/evaluate/results_file.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/evaluate_report.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/sha256.hpp>

#include "commands.hpp"
#include "model_options.hpp"
#include "progress.hpp"
#include "run_options.hpp"

namespace kvbound::sim {
namespace {

std::string evaluate_details() {
  return policy_help() + std::string(R"(
MODEL is a checkpoint as of kvbound record. TASKS has a JSON object a line:

  id                        unlike every other in the file
  prompt, prompt_text       token ids, or for models whose vocabulary is bytes a text
  continuation[_text]       what the model is made to decode after the prompt; its likelihood is measured, or
  answer[_text]             what greedy decoding must give
  compress_at               tokens that are read before the cache is compressed (default: the whole prompt); the
                            rest of the prompt is read through the compressed cache
  kind, depth               which table the task belongs to; where its needle is, from 0 to 1

The first compress_at tokens are read with the full cache. Each policy then compresses every layer's cache at
each budget, which is a share of compress_at, and decodes the given tokens through it: all in lockstep, beside
the full cache. Means over tokens, then over tasks:

  KL      KL(full || compressed) of the next token's distribution, in nats: the primary figure
  dNLL    how much less likely the given tokens become, in nats a token; noisy, may be negative
  top-1   tokens whose most likely token is the full cache's; exact, tokens: answers decoded whole, and their tokens
  s.e.    standard error of the mean over tasks; from, to: 95 % by bootstrap over tasks, paired for differences from --base
  L, layer rel. L, bound, kept mass, recall: as kvbound replay measures them on the full cache's own steps
  hidden  relative error of the hidden state behind the last layer
  entries, stored: that a step attends to, per KV head; bytes of all stored keys and values, in --dtype
  indicators: do they order the policies as KL or dNLL does? Per budget, and with all budgets together, which is mostly
          the budget: Spearman's rank correlation of a task; pairs of policies that both order alike (chance: 50 %)

Exit code 1 if a bound is violated.
)");
}

const std::vector<Example> kEvaluateExamples{
    {"head -n 2 sim/evaluate/tasks/pocket.jsonl > few.jsonl"},
    {"kvbound evaluate traces/samples/pocket few.jsonl --policy snapkv,snapkv+critical --budget 10%,20%"},
    {"kvbound evaluate traces/samples/pocket few.jsonl --policy snapkv,h2o,random --base snapkv --budget 20% --json out.json --resume out.results"},
};

CommandLine evaluate_command_line() {
  CommandLine line(
      "evaluate MODEL TASKS --policy P[,P] --budget B[,B] [options]: a model decodes through compressed caches",
      evaluate_details(), kEvaluateExamples);
  line.add("policy", "P[,P]", "policies (below)");
  line.add("budget", "B[,B]", "budgets: a count, or a share of the compressed tokens such as 20%");
  line.add("base", "P", "compare every policy with this one; evaluated too if not in --policy");
  line.add("steps", "N", "only the first N tokens of every continuation");
  line.add("backend", "B",
           "reference (default), emulated (the CUDA kernels on this processor) or cuda (a GPU)");
  line.add("dtype", "TYPE", "F32, F16 or BF16: the type in which caches store numbers (default: F32)");
  add_heads_option(line);
  line.add("window", "W",
           "queries that policies are given: of the last W tokens before compression (default: 128)");
  line.add("recall", "K",
           "measure recall on the K entries that the first step would miss most (default: 40)");
  add_columns_option(line, evaluate_columns());
  add_output_options(line, "token of a target and policy, the full cache included");
  line.add("resume", "FILE", "keep results of finished tasks in FILE, and go on from those that it has");
  line.add("seed", "N", "seed of the bootstrap's random draws (default: 1)");
  add_text_options(line);
  add_work_options(line);
  return line;
}

std::string hash_of(const std::vector<std::string>& paths, bool quiet) {
  std::vector<std::unique_ptr<traces::InputFile>> files;
  std::vector<const traces::InputFile*> views;
  for (const std::string& path : paths)
    views.push_back(files.emplace_back(std::make_unique<traces::InputFile>(path)).get());
  Progress progress("hashing", !quiet);
  return traces::sha256_of(views, [&](int64_t done, int64_t whole) { progress.update(done, whole); });
}

// The hash of the files that a policy names, of every task; null of policies that name none.
Json named_hash(const Policy& policy, const std::vector<GivenFacts>& facts) {
  std::string hashes;
  if (const std::string* const file = given_file(policy.host)) {
    for (const GivenFacts& task : facts) hashes += task.at(*file).sha256;
  }
  if (const HeadScores* const scores = head_scores(policy)) hashes += scores->sha256;
  return hashes.empty() ? Json() : Json(traces::sha256_of(hashes));
}

// What results depend on.
//
// facts  [tasks]
Json evaluation_of(const EvaluateReport& report, const std::vector<GivenFacts>& facts) {
  const EvaluateOptions& options = report.result.options;
  Json runs = Json::array();
  for (const Run& run : options.runs)
    runs.push_back(canonical(run.policy.policy) + " " + to_string(run.budget));
  const std::string& backend = options.runs.front().backend;
  Json evaluation = fields_of(computation({&backend, 1}));
  for (const Run& run : options.runs) {
    if (const Json hash = named_hash(run.policy.policy, facts); !hash.is_null())
      evaluation["given"].push_back(hash);
  }
  evaluation.update({{"model", report.model_sha256},
                     {"tasks", report.tasks_sha256},
                     {"runs", runs},
                     {"backend", backend},
                     {"dtype", name(options.dtype)},
                     {"heads", traces::name(options.heads)},
                     {"window", options.window},
                     {"recall_of", options.recall_of},
                     {"step_limit", report.step_limit ? Json(*report.step_limit) : Json()}});
  return evaluation;
}

EvaluateReport parse_report(const CommandLine& line) {
  EvaluateReport report;
  const std::string backend = line.text("backend").value_or(std::string(kReference));
  require_backend(backend);
  RunChoice choice = parse_runs(line, {backend});
  report.base = choice.base;
  EvaluateOptions& options = report.result.options;
  options.runs = std::move(choice.runs);
  options.given = given_sources(options.runs);
  options.dtype = stored_type(line, Dtype::f32);
  options.heads = cache_heads(line);
  options.window = line.integer("window", 1, INT32_MAX, options.window);
  options.recall_of = line.integer("recall", 1, INT32_MAX, options.recall_of);
  report.seed = line.integer("seed", 0, INT64_MAX, 1);
  if (line.has("steps")) report.step_limit = line.integer("steps", 2, INT32_MAX, 0);
  return report;
}

int64_t most_tokens(const std::vector<Task>& tasks) {
  int64_t most = 0;
  for (const Task& task : tasks) most = std::max(most, std::ssize(task.prompt) + std::ssize(task.target));
  return most;
}

// Exit code, and on standard error why.
int evaluate_exit_code(const EvaluateReport& report, const Cube& runs) {
  int code = kPass;
  const std::vector<double>& violations = runs.find("violations")->numbers();
  for (int64_t row = 0; row < runs.rows(); ++row) {
    const double count = violations[static_cast<size_t>(row)];
    if (!(count > 0)) continue;
    const Run& named = report.result.options.runs[static_cast<size_t>(runs.place(row, 1) - 1)];
    std::cerr << fmt::format(
        "kvbound: {} at {}: the perturbation exceeds its bound {} times in tasks of kind {}\n",
        named.policy.label, to_string(named.budget), count,
        traces::printable(runs.axes[0]->keys[0].text(runs.place(row, 0))));
    code = kMismatch;
  }
  return code;
}

}  // namespace

int evaluate_command(const Arguments& arguments) {
  CommandLine line = evaluate_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const bool quiet = line.has("quiet");
  EvaluateReport report = parse_report(line);
  const std::vector<std::string> columns = chosen_columns(line, evaluate_columns());
  const std::vector<std::string> places = line.positionals("MODEL and TASKS", 2, 2);
  report.model_path = places[0];
  report.tasks_path = places[1];
  const traces::Checkpoint checkpoint(places[0]);
  const bool needs_hashes = line.has("json") || line.has("resume");
  const std::string text = task_text(places[1]);
  if (needs_hashes) report.tasks_sha256 = traces::sha256_of(text);
  std::vector<Task> tasks = tasks_of(places[1], text, checkpoint.config().vocabulary);
  if (report.step_limit) shorten(tasks, *report.step_limit);
  OutputPaths taken;
  for (const std::string& input : checkpoint.paths()) taken.add_input(input);
  for (const std::string& path : named_files(report.result.options.runs)) taken.add_input(path);
  taken.add_input(places[1]);
  Outputs outputs(line, taken, "evaluate");
  const auto resume = line.text("resume");
  if (resume) taken.add("resume", *resume);
  const std::vector<GivenFacts> facts = require_valid(report.result.options, tasks, checkpoint.config());
  report.result.options.runs = with_names(report.result.options.runs, facts);
  warn_of_long_context(checkpoint.config(), most_tokens(tasks), quiet);
  outputs.open();
  if (needs_hashes) report.model_sha256 = hash_of(checkpoint.paths(), quiet);
  std::unique_ptr<ResultsFile> finished;
  if (resume) finished = std::make_unique<ResultsFile>(*resume, evaluation_of(report, facts));
  {
    Progress progress("evaluating", !quiet);
    report.result = evaluate(checkpoint, tasks, report.result.options, finished.get(),
                             [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  const Part part = evaluate_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance(environment(), report.seed));
  return evaluate_exit_code(report, *part.find("runs"));
}

}  // namespace kvbound::sim
