#include <omp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
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

// Returns only if it fails.
void start_again(const Arguments& arguments) {
  std::vector<std::string> words{"kvbound", "bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execve("/proc/self/exe", pointers.data(), environ);
}

// Whether a product works, found out by a process of its own: one that meets instructions which the processor
// does not have is ended.
bool kernels_run() {
  const pid_t child = fork();
  if (child < 0) throw IoError(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (child == 0) {
    const rlimit no_core_file{0, 0};
    setrlimit(RLIMIT_CORE, &no_core_file);
    std::signal(SIGILL, SIG_DFL);
    const Matrix a(67, 67);  // full and ragged blocks of any kernel
    Matrix product(67, 67);
    reference::multiply(a, a, product.view());
    reference::multiply_transposed(a, a, product.view());
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw IoError(fmt::format("cannot wait for a process: {}", std::strerror(errno)));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// OpenBLAS passes over a name that it does not know, and some builds over a core whose instructions the
// processor lacks; others run it nevertheless.
void require_kernels_of(const std::string& core) {
  const std::string real = reference::blas_info().core;
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  if (!std::ranges::equal(core, real, {}, lower, lower)) {
    throw UsageError(
        fmt::format("--blas-core '{}': OpenBLAS runs its {} kernels instead", one_line(core), real));
  }
  if (!kernels_run()) {
    throw UsageError(fmt::format("--blas-core '{}': this processor cannot run its kernels", one_line(core)));
  }
}

// OpenBLAS chooses its kernels when it is loaded, before main. So the program begins anew, in its own place,
// unless the environment is as it should be: with OPENBLAS_CORETYPE = core, or without it if there is none.
void require_blas_core(const std::optional<std::string>& core, const Arguments& arguments, bool quiet) {
  const char* now = std::getenv(kCoreType);
  if (core && now && *core == now) return require_kernels_of(*core);
  if (!core && !now) return;
  if (!quiet && now) {
    std::cerr << fmt::format("kvbound: {}={} of the environment is not heeded: starting again\n", kCoreType,
                             one_line(now));
  }
  // Not with the environment as it was: that would begin anew for ever.
  if ((core ? setenv(kCoreType, core->c_str(), 1) : unsetenv(kCoreType)) == 0) start_again(arguments);
  throw IoError(fmt::format("cannot start again {} {}{}: {}", core ? "with" : "without", kCoreType,
                            core ? "=" + one_line(*core) : "", std::strerror(errno)));
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

std::string row(std::string_view name, std::string_view median, std::string_view least, std::string_view most,
                std::string_view rate) {
  return fmt::format("{:<34} {:>9} {:>9} {:>9}   {}\n", name, median, least, most, rate);
}

std::string line(const BenchResult& result, size_t index) {
  const BenchTimes& times = result.times[index];
  const Spread seconds = spread(times.seconds);
  return row((index == 0 ? "" : "  ") + times.name, duration_text(seconds.median),
             duration_text(seconds.least), duration_text(seconds.most),
             rate_text(times.work / seconds.median, times.unit));
}

std::string text(const BenchResult& result) {
  std::string lines;
  for (size_t i = 0; i < result.times.size(); ++i) lines += line(result, i);
  if (result.ratios.empty()) return lines + fmt::format("  -> no ratio: {}\n", result.no_ratio);
  const Spread ratio = spread(result.ratios);
  lines += fmt::format("  -> {:.2f} ({:.2f}-{:.2f}) {}", ratio.median, ratio.least, ratio.most,
                       result.ratio_meaning);
  if (result.goal) {
    lines += fmt::format("; goal {} {:g}: {}", result.goal->is_least ? "at least" : "at most",
                         result.goal->value, result.verdict());
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
  if (result.goal) goal = {{result.goal->is_least ? "at_least" : "at_most", result.goal->value}};
  const auto met = result.met();
  return {{"operation", result.operation},
          {"rounds", result.times.front().seconds.size()},
          {"warm_up", result.warm_up},
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
  return fmt::format("{}:{}, {} thread{}, seed {}; {} loops; OpenBLAS for {}, {}\n\n", options.shape.name,
                     options.shape.tokens, options.threads, options.threads == 1 ? "" : "s", options.seed,
                     name(reference::instruction_set()), blas.core, blas.flavour) +
         row("", "median", "least", "most", "rate");
}

CommandLine command_line() {
  CommandLine line("bench [OPERATION...] [options]: how fast, against ceilings measured in the same run",
                   details());
  line.add("backend", "B", "what runs the operations (default and only one: reference)");
  line.add("shape", "NAME:TOKENS", "the layer (default: llama-3.1-8b:32768)");
  line.add("repeats", "N",
           "rounds that count (default: as many of 7 as a minute allows, but 3, or 2 if one takes a minute)");
  line.add("blas-core", "CORE",
           "have OpenBLAS use its kernels for this processor (default: what it thinks best)");
  line.add("seed", "N", "of the random numbers worked on (default: 1)");
  line.add("json", "FILE", "write it as JSON, too (schema: sim/bench.schema.json)");
  add_work_options(line);
  return line;
}

BenchOptions parse_options(const CommandLine& line) {
  if (const auto backend = line.text("backend")) require_backend(*backend);
  BenchOptions options;
  options.shape = parse_bench_shape(line.text("shape").value_or("llama-3.1-8b:32768"));
  if (line.has("repeats")) options.rounds.asked = line.integer("repeats", 1, 1000, 1);
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
  if (!quiet && !core) warn_of_old_kernels();
  Json document{{"schema", "kvbound-bench-1"}};
  document.update(environment());
  document["processors"] = omp_get_num_procs();
  document["blas_threads"] = blas_threads(options.threads);
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
