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
#include <iterator>

#include <fmt/format.h>
#include <omp.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/bench/bench_cubes.hpp>
#include <kvbound/sim/bench/device_counting.hpp>
#include <kvbound/sim/bench/prediction_cubes.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/plot.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/options/runs.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/sim/report/bench_report.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/prediction_report.hpp>
#include <kvbound/traces/messages.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kCoreType = "OPENBLAS_CORETYPE";
constexpr int64_t kMostPrompt = 131072, kMostTogether = 1024;
constexpr size_t kMostNames = 64;  // more than there are operations; each may be given once
constexpr const char* kReferencePolicies = "snapkv+critical";
constexpr const char* kDevicePolicies =
    "snapkv+critical,h2o,h2o+obcache-joint,h2o+keepkv,tova+cam,streaming-llm";

std::string described(std::string_view backend) {
  std::string text;
  for (const BenchOperation& operation : bench_operations(backend)) {
    text += fmt::format("  {:<30} {}\n", operation.name, operation.description);
  }
  return text;
}

std::string bench_details() {
  return "Operations of the reference (default: all; prefill, model-step and lockstep if there is a --model):\n" +
         described(kReference) + "\nOperations of a device, with BF16 caches (default: all):\n" +
         described("emulated") +
         R"(
Shapes: llama-3.1-8b, mistral-7b, qwen2.5-32b (32768 tokens by default) and pocket (1984). In every round an operation and
what it is measured against are timed in turn; ratios are taken per round. The goals are this project's own: a missed goal
is shown, but is not a failure.

On a device, calls are timed by the device's clock, over 10 ms of calls that are queued as one CUDA graph. Their arguments
are not in the L2 cache, but for the parts of a decode step. The rooflines are a copy and a BF16 matrix product: by
mma.sync in registers or, if the library is found, by cuBLAS. The emulation runs the same on a processor, by default with
pocket:256, so that it can be tried anywhere; its times say nothing about a GPU, and it has no goals.

With --backend emulated --model GPU nothing is timed: what the kernels do is counted, and a roofline model of the GPU
(sim/roofline) predicts their times. Launches that would take long are sampled. This needs a program that was built with
-D KVBOUND_COUNTED=ON.

The DGEMM that operations are measured against always uses OpenBLAS's fastest kernels for this processor, whose name is
shown, even if --blas-core selects others for the operations. OPENBLAS_CORETYPE is ignored.
)";
}

// Without names all operations, those that run a model only if there is one.
std::vector<const BenchOperation*> chosen_operations(std::string_view backend,
                                                     const std::vector<std::string>& names, bool has_model) {
  const std::span<const BenchOperation> all = bench_operations(backend);
  std::vector<const BenchOperation*> chosen;
  std::string known;
  for (const BenchOperation& operation : all) {
    (known += known.empty() ? "" : ", ") += operation.name;
    const auto asked = std::ranges::count(names, operation.name);
    if (asked > 1) throw UsageError(fmt::format("operation '{}' is given twice", operation.name));
    if (asked == 1 && operation.by_model && !has_model)
      throw UsageError(fmt::format("operation '{}' needs --model", operation.name));
    if (asked == 1 || (names.empty() && (has_model || !operation.by_model))) chosen.push_back(&operation);
  }
  for (const std::string& name : names) {
    if (std::ranges::find(all, name, &BenchOperation::name) == all.end()) {
      throw UsageError(fmt::format("no operation {}; known: {}", traces::quoted(name), known));
    }
  }
  return chosen;
}

// Whether matrix products work, tried in a child process, because a processor that lacks the kernels'
// instructions kills the process with SIGILL.
bool kernels_run() {
  const pid_t child = fork();
  if (child < 0) throw IoError(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (child == 0) {
    const rlimit no_core_file{0, 0};
    setrlimit(RLIMIT_CORE, &no_core_file);
    std::signal(SIGILL, SIG_DFL);
    const Matrix a(67, 67);  // large enough for full and ragged blocks of any kernel
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

// Makes OpenBLAS use the kernels of a core; throws UsageError if it cannot. OpenBLAS ignores names that it
// does not know, and some builds also ignore a core whose instructions the processor lacks; other builds
// run its kernels and crash.
void require_kernels_of(const std::string& core) {
  const std::string real = reference::use_products_of(core).core;
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  if (!std::ranges::equal(core, real, {}, lower, lower)) {
    throw UsageError(
        fmt::format("--blas-core {}: OpenBLAS runs its {} kernels instead", traces::quoted(core), real));
  }
  if (!kernels_run()) {
    throw UsageError(
        fmt::format("--blas-core {}: this processor cannot run its kernels", traces::quoted(core)));
  }
}

// Ignores OPENBLAS_CORETYPE, with a warning, because the goals are stated for the fastest kernels.
void disregard_core_type(const std::optional<std::string>& asked_for, bool quiet) {
  const char* core = std::getenv(kCoreType);
  if (!core) return;
  if (!quiet && asked_for != core) {
    std::cerr << fmt::format("kvbound: {}={} of the environment is ignored; --blas-core is not\n", kCoreType,
                             one_line(core));
  }
  unsetenv(kCoreType);
  reference::use_fastest_products();
}

void warn_of_slow_kernels() {
  const reference::BlasInfo blas = reference::blas_info();
  if (blas.faster_core.empty()) return;
  std::cerr << fmt::format(
      "kvbound: this processor can run faster kernels than {}'s, {}'s for one, but this {} has none or cannot "
      "change to them\n",
      blas.core, blas.faster_core, blas.library());
}

const std::vector<Example> kBenchExamples{
    {"kvbound bench window-attention selection --shape pocket --json bench.json"},
    {"kvbound bench compress --shape pocket:256 --policy snapkv,snapkv+critical --repeats 3"},
    {"kvbound bench prefill --model traces/samples/pocket --prompt 64 --repeats 1"},
    {"kvbound bench select-critical --backend emulated --shape pocket:256 --repeats 1"},
    {"kvbound bench --backend cuda --json bench.json", "a GPU"},
    {"kvbound bench attention compact --backend cuda --shape qwen2.5-32b:131072 --repeats 31", "a GPU"},
    {"kvbound bench step --policy h2o --layers 32 --requests 8 --backend cuda", "a GPU"},
    {"kvbound bench compact --backend emulated --model h100 --json bench.json",
     "a build with KVBOUND_COUNTED"},
};

CommandLine bench_command_line() {
  CommandLine line(
      "bench [OPERATION...] [options]: speed of operations, against rooflines measured in the same run",
      bench_details(), kBenchExamples);
  line.add("backend", "B", "backend that runs the operations: reference (default), emulated or cuda");
  line.add("shape", "NAME[:TOKENS]", "the layer (default: llama-3.1-8b; emulated: pocket:256)");
  const std::string policy =
      fmt::format("policies of compress, and of step on a device (default: {}; on a device: {})",
                  kReferencePolicies, kDevicePolicies);
  line.add("policy", "P[,P]", policy.c_str());
  line.add(
      "repeats", "N",
      "counted rounds (default: 3 to 7, until a minute has passed; 2 if one takes longer than a minute)");
  line.add(
      "blas-core", "CORE",
      "run the operations on OpenBLAS's kernels for this processor (default: the fastest); reference only");
  line.add(
      "model", "MODEL",
      "reference: checkpoint that prefill, model-step and lockstep run, a GGUF file or a folder, as for record; emulated: GPU whose "
      "times to predict, h100 or h200");
  line.add("prompt", "N", "tokens that prefill reads (default: 4096)");
  line.add("layers", "N", "layers whose decode steps are taken together, by step on a device (default: 1)");
  line.add(
      "requests", "N",
      "requests whose steps are taken together, too: the i-th of N has (N + i) / 2N of the tokens (default: 1)");
  line.add("seed", "N", "seed of the random data (default: 1)");
  line.add(
      "peer", "FILE",
      "also show what another program took for the same operations, as sim/bench/peers/bench_torch.py writes it");
  std::vector<Figure> columns = bench_columns();
  std::ranges::move(prediction_columns(), std::back_inserter(columns));
  add_columns_option(line, columns);
  add_output_options(line,
                     "operation and work that it is measured against; of predictions: operation and launch");
  add_text_options(line);
  add_work_options(line);
  return line;
}

BenchOptions bench_options(const CommandLine& line, std::string_view backend) {
  BenchOptions options;
  const bool tries = backend == "emulated" && !line.has("model");  // the emulation's own times say nothing
  options.shape = parse_bench_shape(line.text("shape").value_or(tries ? "pocket:256" : "llama-3.1-8b"));
  if (line.has("repeats")) options.rounds.asked = line.integer("repeats", 1, 1000, 1);
  options.seed = static_cast<uint64_t>(line.integer("seed", 0, INT64_MAX, 1));
  const std::string model = line.text("model").value_or("");
  if (line.has("model") && model.empty()) throw UsageError("--model: an empty name");
  if (backend == "emulated" && line.has("model")) {
    options.gpu = Gpu::named(model);
  } else {
    options.model = model;
  }
  options.prompt = line.integer("prompt", 1, kMostPrompt, options.prompt);
  if (backend != kReference && line.has("prompt"))
    throw UsageError(fmt::format("--prompt is for the reference, not for --backend {}", backend));
  if (backend == "cuda" && line.has("model"))
    throw UsageError("--model is for the reference and for --backend emulated, not for --backend cuda");
  if (options.gpu && (line.has("repeats") || line.has("peer")))
    throw UsageError("--repeats and --peer are for measurements; --model only predicts");
  options.layers = line.integer("layers", 1, kMostTogether, 1);
  options.requests = line.integer("requests", 1, kMostTogether, 1);
  const std::vector<std::string> names = line.positionals("OPERATION", 0, kMostNames);
  const bool has_steps = names.empty() || std::ranges::count(names, "step") > 0;
  if ((line.has("layers") || line.has("requests")) && (backend == kReference || !has_steps))
    throw UsageError("--layers and --requests are for step, with --backend emulated or cuda");
  if (options.layers * options.requests > kMostTogether)
    throw UsageError(fmt::format("--layers times --requests is {}; expected at most {}",
                                 options.layers * options.requests, kMostTogether));
  apply_threads(line);
  options.threads = omp_get_max_threads();
  return options;
}

// The policies asked for, as they were written.
std::vector<std::string> chosen_policies(const CommandLine& line, std::string_view backend) {
  std::vector<std::string> texts = split_list(
      "policy", line.text("policy").value_or(backend == kReference ? kReferencePolicies : kDevicePolicies));
  std::vector<Policy> known;
  for (const std::string& text : texts) {
    known.push_back(parse_policy(text));
    if (std::ranges::count(known, known.back()) > 1) {
      throw UsageError(fmt::format("--policy: {} is given twice", traces::quoted(text)));
    }
  }
  return texts;
}

// An operation with the policy that it is run by, if it is.
struct Measurement {
  const BenchOperation* operation;
  std::string policy;
};

std::vector<Measurement> measurements_of(const std::vector<const BenchOperation*>& operations,
                                         const std::vector<std::string>& policies) {
  std::vector<Measurement> all;
  for (const BenchOperation* const operation : operations) {
    if (!operation->by_policy) all.push_back({operation, ""});
    for (const std::string& policy : policies) {
      if (operation->by_policy) all.push_back({operation, policy});
    }
  }
  return all;
}

// --peer's times, if there are any; with a warning if they are of another processor or number of threads.
std::optional<Peer> chosen_peer(const CommandLine& line, const BenchOptions& options,
                                std::string_view backend) {
  const auto path = line.text("peer");
  if (!path) return std::nullopt;
  if (path->empty()) throw UsageError("--peer: an empty file name");
  Peer peer = read_peer(*path);
  require_same_work(peer, options.shape, backend);
  if (!line.has("quiet") && peer.is_reference && peer.threads != options.threads) {
    std::cerr << fmt::format("kvbound: warning: {} used {} threads, and this run uses {}: --threads\n",
                             traces::printable(peer.name), peer.threads, options.threads);
  }
  return peer;
}

// Returns the core whose DGEMM the reference's operations are measured against: the fastest one.
std::string prepare_blas(const CommandLine& line, std::string_view backend) {
  const auto core = line.text("blas-core");
  if (core && core->empty()) throw UsageError("--blas-core: an empty name");
  if (backend != kReference) {
    if (core)
      throw UsageError(fmt::format("--blas-core is for the reference, not for --backend {}", backend));
    return "";
  }
  const std::string library = reference::blas_info().library();
  if (library != "OpenBLAS") {
    if (core) throw UsageError(fmt::format("--blas-core is for OpenBLAS; this program has {}", library));
    return reference::blas_info().core;
  }
  disregard_core_type(core, line.has("quiet"));
  if (!line.has("quiet")) warn_of_slow_kernels();
  const std::string fastest = reference::blas_info().core;
  if (core) {
    require_kernels_of(*core);
    setenv(kCoreType, core->c_str(), 1);  // as if the program had been started with it
  }
  return fastest;
}

// Runs `each` on the result of every operation, which is measured or predicted, as soon as it is there.
template <class Each>
void run_all(const std::vector<Measurement>& measurements, BenchOptions options, bool quiet,
             const Each& each) {
  for (size_t i = 0; i < measurements.size(); ++i) {
    const BenchOperation& operation = *measurements[i].operation;
    BenchResult result;
    {
      Progress progress(fmt::format("{} {}", options.gpu ? "counting" : "measuring", operation.name), !quiet);
      progress.update(static_cast<int64_t>(i), std::ssize(measurements));
      options.policy = measurements[i].policy;
      result = operation.run(options);
    }
    result.operation = operation.name;
    result.label = options.policy;
    each(std::move(result));
  }
}

// bench --backend emulated --model GPU.
Part predict_all(const BenchOptions& options, const std::vector<Measurement>& measurements,
                 const TextStyle& style, const std::vector<std::string>& columns, bool quiet) {
  const ActingAs acting(*options.gpu);
  std::vector<BenchResult> results;
  run_all(measurements, options, quiet, [&](BenchResult result) { results.push_back(std::move(result)); });
  Part part = prediction_part(options, results);
  std::cout << prediction_text(options, results, part, style, columns);
  return part;
}

// Prints every operation as soon as it is measured; or a table of all, if its columns
// or Markdown are asked for.
Part measure_all(BenchReport report, const std::vector<Measurement>& measurements, const TextStyle& style,
                 const std::vector<std::string>& columns, bool quiet) {
  const bool is_table = style.markdown || !columns.empty();
  std::cout << heading(report) << (is_table ? "" : rows_heading()) << std::flush;
  run_all(measurements, report.options, quiet, [&](BenchResult result) {
    if (!is_table) std::cout << text(result) << (report.peer ? text(*report.peer, result) : "") << std::flush;
    report.results.push_back(std::move(result));
  });
  Part part = bench_part(report);
  const Cube& operations = *part.find("operations");
  if (is_table) std::cout << cube_table(operations, style, columns);
  std::cout << only_of_peer_text(report);
  if (style.plot)
    std::cout << bar_chart("share of the goal", bars_of(operations, "", "operation", "of_goal"), style);
  return part;
}

}  // namespace

int bench_command(const Arguments& arguments) {
  CommandLine line = bench_command_line();
  if (!line.parse(arguments)) return kPass;
  const bool quiet = line.has("quiet");
  const std::string backend = line.text("backend").value_or(std::string(kReference));
  require_backend(backend);
  BenchOptions options = bench_options(line, backend);
  const auto operations =
      chosen_operations(backend, line.positionals("OPERATION", 0, kMostNames), !options.model.empty());
  if ((!options.model.empty() || line.has("prompt")) &&
      std::ranges::none_of(operations, &BenchOperation::by_model))
    throw UsageError("--model and --prompt are for operations that run a model, none of which was chosen");
  if (line.has("policy") && std::ranges::none_of(operations, &BenchOperation::by_policy))
    throw UsageError("--policy is for operations that are run by a policy, none of which was chosen");
  const std::vector<std::string> policies = chosen_policies(line, backend);
  std::optional<Peer> peer = chosen_peer(line, options, backend);
  options.fastest_core = prepare_blas(line, backend);

  const std::vector<std::string> columns =
      chosen_columns(line, options.gpu ? prediction_columns() : bench_columns());
  const TextStyle style = text_style(line);
  std::vector<std::string> inputs;
  if (peer) inputs.push_back(peer->path);
  Outputs outputs(line, inputs, options.gpu ? "bench-model" : "bench");
  const std::vector<Measurement> measurements = measurements_of(operations, policies);
  const nlohmann::ordered_json origin = provenance(environment(), options.seed);
  if (options.gpu) {
    outputs.write(predict_all(options, measurements, style, columns, quiet), origin);
    return kPass;
  }
  BenchReport report{.backend = backend, .options = options, .peer = std::move(peer)};
  if (backend != kReference) report.accelerator = accelerator(backend);
  outputs.write(measure_all(std::move(report), measurements, style, columns, quiet), origin);
  return kPass;
}

}  // namespace kvbound::sim
