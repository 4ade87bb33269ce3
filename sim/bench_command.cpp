#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/instruction_set.hpp>
#include <kvbound/reference/product.hpp>
#include <kvbound/traces/output_file.hpp>

#include "backend.hpp"
#include "bench.hpp"
#include "command_line.hpp"
#include "environment.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCoreType = "OPENBLAS_CORETYPE";

std::string details() {
  std::string text = "Operations (default: all):\n";
  for (const BenchOperation& operation : bench_operations()) {
    text += fmt::format("  {:<22} {}\n", operation.name, operation.description);
  }
  return text +
         "\nShapes: llama-3.1-8b:TOKENS and pocket:TOKENS. In every round an operation and what it is "
         "measured\n"
         "against are timed in turn; ratios are taken per round. The goals are this project's own: a missed\n"
         "one is shown, and no failure.\n"
         "\nOPENBLAS_CORETYPE is not heeded: the program starts itself again without it.\n"
         "\nExamples:\n"
         "  kvbound bench\n"
         "  kvbound bench window-attention selection --shape llama-3.1-8b:8192 --json bench.json\n"
         "  kvbound bench projected-value-norms --blas-core Haswell --repeats 15\n";
}

std::vector<const BenchOperation*> chosen_operations(const std::vector<std::string>& names) {
  std::vector<const BenchOperation*> chosen;
  std::string known;
  for (const BenchOperation& operation : bench_operations()) {
    (known += known.empty() ? "" : ", ") += operation.name;
    const auto asked = std::ranges::count(names, operation.name);
    if (asked > 1) throw UsageError(fmt::format("operation '{}' is given twice", operation.name));
    if (asked == 1 || names.empty()) chosen.push_back(&operation);
  }
  for (const std::string& name : names) {
    if (std::ranges::find(bench_operations(), name, &BenchOperation::name) == bench_operations().end()) {
      throw UsageError(fmt::format("no operation '{}'; known: {}", name, known));
    }
  }
  return chosen;
}

// OpenBLAS chooses its kernels when it is loaded, before main. So the program begins anew, in its own place,
// unless the environment is as it should be: with OPENBLAS_CORETYPE = core, or without it if there is none.
void require_blas_core(const std::optional<std::string>& core, const Arguments& arguments, bool quiet) {
  const char* now = std::getenv(kCoreType);
  if (core ? now && *core == now : !now) return;
  if (!quiet && now) {
    std::cerr << fmt::format("kvbound: {}={} of the environment is not heeded: starting again\n", kCoreType,
                             one_line(now));
  }
  core ? setenv(kCoreType, core->c_str(), 1) : unsetenv(kCoreType);
  std::vector<std::string> words{"kvbound", "bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execve("/proc/self/exe", pointers.data(), environ);
  throw IoError(fmt::format("cannot start again without {}: {}", kCoreType, std::strerror(errno)));
}

void warn_of_old_kernels() {
  const reference::InstructionSet level = reference::instruction_set();
  const std::string core = reference::blas_info().core;
  if (level == reference::InstructionSet::generic || core != "Prescott") return;
  std::cerr << fmt::format(
      "kvbound: OpenBLAS does not know this processor and runs its {} kernels, though there is {};\n"
      "         --blas-core {} shows what it can do\n",
      core, name(level), level == reference::InstructionSet::avx512 ? "SkylakeX" : "Haswell");
}

std::string duration(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:#.3g} us", seconds * 1e6)
         : seconds < 1  ? fmt::format("{:#.3g} ms", seconds * 1e3)
                        : fmt::format("{:#.3g} s", seconds);
}

std::string rate(const BenchTimes& times) {
  const double per_second = times.work / spread(times.seconds).median;
  return times.unit == "FLOP" ? fmt::format("{:.1f} GFLOP/s", per_second * 1e-9)
                              : fmt::format("{:.3g} {}/s", per_second, times.unit);
}

std::string line(const BenchResult& result, size_t index) {
  const BenchTimes& times = result.times[index];
  const Spread seconds = spread(times.seconds);
  return fmt::format("{:<34} {:>9} {:>9} {:>9}   {}\n", (index == 0 ? "" : "  ") + times.name,
                     duration(seconds.median), duration(seconds.least), duration(seconds.most), rate(times));
}

std::string text(const BenchResult& result) {
  std::string lines;
  for (size_t i = 0; i < result.times.size(); ++i) lines += line(result, i);
  if (result.ratios.empty()) return lines + fmt::format("  -> no ratio: {}\n", result.no_ratio);
  const Spread ratio = spread(result.ratios);
  lines += fmt::format("  -> {:.2f} ({:.2f}-{:.2f}) {}", ratio.median, ratio.least, ratio.most,
                       result.ratio_meaning);
  if (result.goal) {
    lines += fmt::format("; goal {} {:g}: {}", result.goal->at_least ? "at least" : "at most",
                         result.goal->value, *result.met() ? "met" : "missed");
  }
  return lines + fmt::format("; {} round{}\n", result.ratios.size(), result.ratios.size() == 1 ? "" : "s");
}

Json to_json(const Spread& numbers) {
  return {{"median", numbers.median}, {"least", numbers.least}, {"most", numbers.most}};
}

Json to_json(const BenchTimes& times) {
  return {{"name", times.name},
          {"work", times.work},
          {"unit", times.unit},
          {"seconds", to_json(spread(times.seconds))}};
}

Json to_json(const BenchResult& result) {
  Json times = Json::array();
  for (const BenchTimes& row : result.times) times.push_back(to_json(row));
  Json ratio, goal;
  if (!result.ratios.empty()) ratio = to_json(spread(result.ratios));
  if (result.goal) goal = {{result.goal->at_least ? "at_least" : "at_most", result.goal->value}};
  const auto met = result.met();
  return {{"operation", result.operation},
          {"rounds", result.times.front().seconds.size()},
          {"times", times},
          {"ratio", ratio},
          {"ratio_meaning", result.ratio_meaning},
          {"no_ratio", result.ratios.empty() ? Json(result.no_ratio) : Json()},
          {"goal", goal},
          {"met", met ? Json(*met) : Json()}};
}

Json to_json(const BenchShape& shape) {
  return {{"name", shape.name},
          {"tokens", shape.tokens},
          {"query_heads", shape.layer.query_heads},
          {"kv_heads", shape.layer.kv_heads},
          {"head_dim", shape.layer.head_dim},
          {"model_dim", shape.layer.model_dim}};
}

std::string heading(const BenchOptions& options) {
  const reference::BlasInfo blas = reference::blas_info();
  return fmt::format(
      "{}:{}, {} thread{}, seed {}; {} loops; OpenBLAS for {}, {}\n\n{:<34} {:>9} {:>9} {:>9}   rate\n",
      options.shape.name, options.shape.tokens, options.threads, options.threads == 1 ? "" : "s",
      options.seed, name(reference::instruction_set()), blas.core, blas.flavour, "", "median", "least",
      "most");
}

CommandLine command_line() {
  CommandLine line("bench [OPERATION...] [options]: how fast, against ceilings measured in the same run",
                   details());
  line.add("backend", "B", "what runs the operations (default and only one: reference)");
  line.add("shape", "NAME:TOKENS", "the layer (default: llama-3.1-8b:32768)");
  line.add("repeats", "N", "rounds at most; fewer if they take long (default: 7)");
  line.add("blas-core", "CORE",
           "have OpenBLAS use its kernels for this processor (default: what it thinks best)");
  line.add("seed", "N", "of the random numbers worked on (default: 1)");
  line.add("json", "FILE", "write it as JSON, too (schema: sim/bench.schema.json)");
  line.add("threads", "N", "threads to work on (default: all processors)");
  line.add_flag("quiet", "no progress and no warnings");
  return line;
}

BenchOptions parse_options(const CommandLine& line) {
  if (const auto backend = line.text("backend")) require_backend(*backend);
  BenchOptions options;
  options.shape = parse_bench_shape(line.text("shape").value_or("llama-3.1-8b:32768"));
  options.rounds.most = line.integer("repeats", 1, 1000, options.rounds.most);
  options.seed = static_cast<uint64_t>(line.integer("seed", 0, INT64_MAX, 1));
  apply_threads(line);
  options.threads = omp_get_max_threads();
  return options;
}

}  // namespace

int bench_command(const Arguments& arguments) {
  CommandLine line = command_line();
  if (!line.parse(arguments)) return kPass;
  const bool quiet = line.has("quiet");
  const BenchOptions options = parse_options(line);
  const auto operations = chosen_operations(line.positionals("OPERATION", 0, bench_operations().size()));
  const auto core = line.text("blas-core");
  if (core && core->empty()) throw UsageError("--blas-core: an empty name");
  require_blas_core(core, arguments, quiet);

  std::optional<traces::OutputFile> file;
  if (const auto json = line.text("json")) {
    OutputPaths().add("json", *json);
    file.emplace(*json);
  }
  if (!quiet) warn_of_old_kernels();
  Json document{{"schema", "kvbound-bench-1"}};
  document.update(environment());
  document["instruction_set"] = name(reference::instruction_set());
  document["backend"] = "reference";
  document["seed"] = options.seed;
  document["shape"] = to_json(options.shape);
  document["operations"] = Json::array();
  std::cout << heading(options) << std::flush;
  for (size_t i = 0; i < operations.size(); ++i) {
    BenchResult result;
    {
      Progress progress(fmt::format("measuring {}", operations[i]->name), !quiet);
      progress.update(static_cast<int64_t>(i), static_cast<int64_t>(operations.size()));
      result = operations[i]->run(options);
    }
    result.operation = operations[i]->name;
    std::cout << text(result) << std::flush;
    document["operations"].push_back(to_json(result));
  }
  flush_standard_output();
  if (file) {
    file->write(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    file->commit();
  }
  return kPass;
}

}  // namespace kvbound::sim
