#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/replay.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/predict_report.hpp>
#include <kvbound/sim/study/retrieval_scores.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kPredictDetails =
    R"(Scores s_j of a query, per query head, of the entries j that it sees: attention, exp(z_j) / sum exp(z), and raw, exp(z_j).
At every decode step those of all entries but the step's own are predicted, s^_j, from the queries that have seen j before,
of the prompt (as many as are recorded) and of earlier steps:
  ema          S = ema S + (1 - ema) s, divided by the weights that were really added up
  ema-paper    the same, divided by 1 - ema^tokens, as KeepKV (arXiv:2504.09936) prints it
  mean         the mean over all these queries
  window-mean  the mean over the last W of them
  last         the last query's score

Errors, each of one step and query head:
  relative error  sum_j |s^_j - s_j| / sum_j s_j
  entry error     the median over j of |s^_j - s_j| / s_j

The table has the mean and median of both over layers, query heads and steps. Ratios that overflow double precision are
counted as undefined: they are left out of the mean and are the largest for the median.

Re-entering: of the prompt entries that the policy evicts at the prompt's end, the share that is among the top of the
prompt's entries by the attention of a decode step's query over the full cache (ties: smaller position): at any step and, on
average, at one step; mean over layers and query heads, 0 if nothing was evicted. Evictions while decoding are not simulated.

Variance: of an entry's attention scores, over all queries so far, the step's included, that have seen it, over the last W of
them, and the ratio of the two; means over the entries that more than W queries have seen, over steps, layers and query heads.
If scores are independent of each other, the ratio is about 1 - 1/W; if successive ones are alike, as KeepKV observes, smaller.

Attention: the total attention of a step's query on the given share of all entries, its own included, that receives most;
mean, median and least over layers, query heads and steps. Shares are rounded down.

With --head-scores, TRACEs of needle tasks, whose decode steps are the answer, give instead the file of a model's heads
that policies with headkv share a budget by (HeadKV, arXiv:2410.19258): every query head's sum, over the answer's tokens, of
the attention on the needle's positions that are among the top K of all (default: as many as the needle has), mean over the
traces.

Exit code 5 if the trace has no decode step to predict, or if no head has a position of the needle among its top.
)";

const std::vector<Example> kPredictExamples{
    {"kvbound predict traces/samples/pocket-mha.safetensors"},
    {"kvbound predict traces/samples/smollm2-135m.safetensors --ema 0.98 --window 8 --steps 16 --layers 11-20 --json predict.json"},
    {"kvbound predict traces/samples/smollm2-135m.safetensors --steps 8 --policy h2o+critical --budget 10% --top 5%"},
    {"kvbound predict traces/samples/pocket-gqa.safetensors --head-scores scores.json --needle 900-915"},
};

CommandLine predict_command_line() {
  CommandLine line("predict TRACE... [options]: how well past scores predict the next query's",
                   kPredictDetails, kPredictExamples);
  line.add("ema", "A", "weight of the past in moving averages, 0 <= A < 1 (default: 0.9)");
  line.add("window", "W",
           "number of queries that window-mean averages and a variance's window has (default: 32)");
  line.add("policy", "P",
           "the policy that evicts at the prompt's end; see kvbound policies (default: snapkv)");
  line.add("budget", "B", "entries per KV head that the policy keeps, such as 256 or 20% (default: 20%)");
  line.add("top", "K", "size of the prompt's top set, such as 100 or 5% (default: 20%)");
  line.add("head-scores", "FILE", "write the importances of heads for headkv, and nothing else");
  line.add("needle", "P-Q[,P-Q]",
           "with --head-scores: the first and last position of each trace's needle, or of all traces'");
  line.add("shares", "K[,K]", "numbers of entries whose attention is summed (default: 1%,2%,5%,10%,20%,50%)");
  line.add("layers", "L[,L]", "layers, such as 0,3-5 (default: all)");
  line.add("steps", "N", "only the first N decode steps (default: all)");
  add_columns_option(line, predict_columns());
  add_output_options(line, "layer and query head, with its predictors and shares");
  add_text_options(line);
  add_common_options(line);
  return line;
}

// Reads a count of entries, or a share of them.
Budget parse_share(const char* option, const std::string& text) {
  try {
    return parse_budget(text);
  } catch (const InvalidPolicy&) {
    throw UsageError(fmt::format("--{} {}: expected a count of entries such as 256, or a share such as 20%",
                                 option, traces::quoted(text)));
  }
}

double parse_ema(const std::string& text) {
  const auto ema = parse_decimal(text);
  if (ema && ema->value() < 1) return ema->value();
  throw UsageError(
      fmt::format("--ema {}: expected a decimal number from 0 to below 1", traces::quoted(text)));
}

std::vector<Budget> parse_shares(const std::string& list) {
  std::vector<Budget> shares;
  for (const std::string& text : split_list("shares", list)) {
    const Budget share = parse_share("shares", text);
    if (std::ranges::find(shares, share) != shares.end())
      throw UsageError(fmt::format("--shares: {} is given twice", traces::quoted(text)));
    shares.push_back(share);
  }
  return shares;
}

PredictOptions predict_options(const CommandLine& line, const traces::TraceInfo& info) {
  PredictOptions options;
  if (const auto ema = line.text("ema")) options.ema = parse_ema(*ema);
  options.window = line.integer("window", 1, INT64_MAX, options.window);
  if (const auto policy = line.text("policy")) options.policy = with_head_scores(parse_policy(*policy));
  if (const auto budget = line.text("budget")) options.budget = parse_budget(*budget);
  if (const auto top = line.text("top")) options.top = parse_share("top", *top);
  if (const auto shares = line.text("shares")) options.shares = parse_shares(*shares);
  const int64_t top = options.top.entries(info.prompt_tokens);
  if (top < 1 || top > info.prompt_tokens) {
    throw UsageError(fmt::format("--top {}: {} of the {} prompt entries of {}", to_string(options.top), top,
                                 info.prompt_tokens, info.path));
  }
  if (line.has("steps") && info.decode_tokens == 0) {
    throw UsageError(fmt::format("--steps: {} has no decode steps", without_middle(info.path)));
  }
  options.steps = line.has("steps") ? line.integer("steps", 1, info.decode_tokens, 0) : info.decode_tokens;
  return options;
}

std::vector<Needle> parse_needles(const CommandLine& line, size_t traces) {
  std::vector<Needle> needles;
  for (const std::string& text : split_list("needle", line.required("needle"))) {
    const auto range = traces::parse_layer_range(text, INT32_MAX);
    if (!range)
      throw UsageError(
          fmt::format("--needle: {} is no range of positions such as 900-915", traces::quoted(text)));
    needles.push_back({range->first, range->second});
  }
  if (needles.size() == 1) needles.resize(traces, needles.front());
  if (needles.size() != traces)
    throw UsageError(fmt::format("--needle: {} ranges for {} traces", needles.size(), traces));
  return needles;
}

// Writes the importances of a model's heads.
int write_head_scores(const CommandLine& line, const std::vector<traces::Trace>& traces) {
  const std::string path = line.required("head-scores");
  OutputPaths taken;
  std::vector<NeedleTrace> examples;
  const std::vector<Needle> needles = parse_needles(line, traces.size());
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const std::string& input : traces[i].paths()) taken.add_input(input);
    examples.push_back({&traces[i], needles[i]});
  }
  taken.add("head-scores", path);
  std::optional<Budget> top;
  if (const auto text = line.text("top")) top = parse_share("top", *text);
  traces::OutputFile file(path);
  Matrix scores;
  {
    Progress progress("scoring heads", !line.has("quiet"));
    scores = mean_retrieval_scores(examples, top,
                                   [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  const auto reading = std::ranges::count_if(scores.numbers(), [](double score) { return score > 0; });
  if (reading == 0) {
    std::cerr << "kvbound: no head has a position of the needle among its top: nothing is written\n";
    return kInconclusive;
  }
  file.write(head_scores_text(traces.front().info().model, scores));
  file.prepare();
  std::cout << fmt::format("{}: {} of {} query heads have the needle among their top\n", one_line(path),
                           reading, scores.numbers().size());
  flush_standard_output();
  file.commit();
  return kPass;
}

}  // namespace

int predict_command(const Arguments& arguments) {
  CommandLine line = predict_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const bool quiet = line.has("quiet");
  const bool scores_heads = line.has("head-scores");
  if (!scores_heads && line.has("needle")) throw UsageError("--needle: is for --head-scores");
  std::vector<traces::Trace> traces;
  for (const std::string& path : line.positionals("TRACE", 1, scores_heads ? SIZE_MAX : 1))
    traces.emplace_back(path, header_options(line));
  if (scores_heads) return write_head_scores(line, traces);
  const traces::Trace& trace = traces.front();
  const PredictOptions options = predict_options(line, trace.info());
  const std::vector<int64_t> layers = chosen_layers(line, trace.info());
  const std::vector<std::string> columns = chosen_columns(line, predict_columns());
  OutputPaths taken;
  for (const std::string& input : trace.paths()) taken.add_input(input);
  Outputs outputs(line, taken, "predict");
  if (options.steps == 0) {
    if (!quiet) {
      std::cerr << fmt::format("kvbound: {}: no decode step whose scores could be predicted\n",
                               one_line(without_middle(trace.info().path)));
    }
    return kInconclusive;
  }
  outputs.open();

  PredictReport report;
  if (outputs.has_json()) {
    Progress progress("hashing", !quiet);
    report.sha256 = trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  {
    Progress progress("predicting", !quiet);
    report.result =
        predict(trace, layers, options, [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  const Part part = predict_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance());
  return kPass;
}

}  // namespace kvbound::sim
