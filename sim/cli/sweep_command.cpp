#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/sweep/costs.hpp>
#include <kvbound/sim/sweep/gather.hpp>
#include <kvbound/sim/sweep/local_engine.hpp>
#include <kvbound/sim/sweep/plan.hpp>
#include <kvbound/sim/sweep/schedule.hpp>
#include <kvbound/sim/sweep/simulation.hpp>
#include <kvbound/sim/sweep/slurm_engine.hpp>
#include <kvbound/sim/sweep/sweep_folder.hpp>
#include <kvbound/sim/sweep/worker.hpp>
#include <kvbound/traces/messages.hpp>

#include "commands.hpp"
#include "gather_files.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr int64_t kMostJobs = 100'000, kMostSimulated = 100'000'000;

const char* const kSweepDetails = R"(A sweep is a replay that many processes share. PLAN is a JSON object:

    {"format": "kvbound-sweep-plan", "version": 1,
     "traces": ["traces/samples/*.safetensors"],
     "policies": ["snapkv:window=16", "random:window=16"],
     "budgets": ["5%", "20%"], "base": "snapkv:window=16"}

and may have backends, layers, steps, recall, merge_bounds, centred_bound (as kvbound replay's options), seeds (of policies that
draw random numbers), layers_per_item (1) and policies_per_item (all: a layer is read once for all policies).

Its items, some layers of a trace through some policies at all budgets, are computed one by one, the largest
first. Results are files in DIR, each whole or not there, named by what they depend on: a sweep that was killed
goes on when it is called again, and one whose plan has more traces, policies or budgets computes those alone.
Several machines that share DIR may call it at a time. Without PLAN, the latest plan of DIR goes on.

An item that fails is tried again, then named. kvbound gather DIR gives what one replay of everything gives.

Exit code 1 if a bound is violated (with --json or --csv), 4 if an item was given up, 5 if results are missing.
)";

const std::vector<Example> kSweepExamples{
    {"kvbound sweep sim/sweep/plan.json --out study --list"},
    {"kvbound sweep sim/sweep/plan.json --out study --jobs 2 --json study.json"},
    {"kvbound sweep --out study --simulate 100000"},
    {"kvbound sweep sim/sweep/plan.json --out study --engine slurm --jobs 100 --sbatch \"--partition=long --time=4:00:00\"",
     "Slurm"},
};

CommandLine sweep_command_line() {
  CommandLine line("sweep [PLAN] --out DIR [options]: a replay of many traces by many processes",
                   kSweepDetails, kSweepExamples);
  line.add("out", "DIR", "folder of the sweep; made if it is not there");
  line.add("engine", "E", "local (default): processes on this machine; slurm: a job array");
  line.add("jobs", "N", "processes, or tasks of the array (default: 1)");
  line.add("threads", "N",
           "threads of each process (default: the processors divided by the processes; what Slurm gives)");
  line.add("share", "I/N", "begin with share I of N, 0 to N-1, as one of N machines that share DIR");
  line.add("retries", "R", "further tries of an item that fails (default: 2)");
  line.add_flag("resume", "go on from the results that DIR has, which is the default");
  line.add("sbatch", "TEXT", "slurm: further options of sbatch, such as \"--partition=long --time=4:00:00\"");
  line.add_flag("wait", "slurm: return when the array has ended");
  line.add("json", "FILE", "gather into FILE when all is done; slurm: by a job that depends on the array");
  line.add("csv", "FILE", "likewise, a row per layer, step and query head");
  line.add_flag("list", "print all items with their estimated seconds, and compute nothing");
  line.add("calibrate", "K", "compute the K smallest items first, so that estimates are of this machine");
  line.add("simulate", "ITEMS",
           "print how long so many items like those that are done would take on 1 to 1024 workers");
  line.add("seed", "S", "of the simulation's draws (default: 1)");
  line.add("sweep", "HASH", "the sweep of that hash in DIR, instead of a plan");
  line.add("worker", "I/N", "be a worker of an engine, which reads its output");
  line.add("header-limit", "BYTES", "largest trace header accepted (default: 16777216)");
  line.add_flag("quiet", "no progress and no summary");
  return line;
}

Share share_of(const CommandLine& line, const char* option) {
  const std::string text = line.text(option).value_or("0/1");
  const size_t slash = text.find('/');
  const auto index = parse_integer(text.substr(0, slash));
  const auto count = slash == std::string::npos ? std::nullopt : parse_integer(text.substr(slash + 1));
  if (!index || !count || *count < 1 || *index < 0 || *index >= *count)
    throw UsageError(fmt::format("--{} {}: expected I/N with 0 <= I < N", option, traces::quoted(text)));
  return {*index, *count};
}

// All options, checked before any work.
struct SweepRequest {
  bool slurm = false;
  int64_t jobs = 1, retries = 2, seed = 1;
  std::optional<int64_t> threads, calibrate, simulate;
  Share share, worker;
  std::optional<std::string> json, csv, hash;
  bool quiet = false;
};

// Job scripts consist of lines, some of which Slurm reads and some a shell.
void refuse_control_characters(const CommandLine& line) {
  for (const char* option : {"out", "sbatch", "json", "csv"}) {
    const auto text = line.text(option);
    if (text && one_line(*text) != *text)
      throw UsageError(fmt::format("--{} '{}': control characters do not go with --engine slurm", option,
                                   one_line(*text)));
  }
}

SweepRequest parse_sweep_request(const CommandLine& line) {
  const std::string engine = line.text("engine").value_or("local");
  if (engine != "local" && engine != "slurm")
    throw UsageError(fmt::format("--engine {}: expected local or slurm", traces::quoted(engine)));
  SweepRequest request;
  request.slurm = engine == "slurm";
  if (request.slurm) {
    refuse_options(line, {"share", "calibrate", "simulate", "list"}, "does not go with --engine slurm");
    refuse_control_characters(line);
  } else {
    refuse_options(line, {"sbatch", "wait"}, "is for --engine slurm");
  }
  const auto integer = [&](const char* option, int64_t most) {
    return line.has(option) ? std::optional(line.integer(option, 1, most, 1)) : std::nullopt;
  };
  request.jobs = line.integer("jobs", 1, kMostJobs, request.jobs);
  request.retries = line.integer("retries", 0, INT32_MAX, request.retries);
  request.seed = line.integer("seed", 0, INT64_MAX, request.seed);
  request.threads = integer("threads", kMostThreads);
  request.calibrate = integer("calibrate", INT32_MAX);
  request.simulate = integer("simulate", kMostSimulated);
  request.share = share_of(line, "share");
  request.worker = share_of(line, "worker");
  request.json = line.text("json");
  request.csv = line.text("csv");
  request.hash = sweep_hash(line);
  request.quiet = line.has("quiet");
  return request;
}

// The sweep that the command line names, and its hash in the folder, if it could be kept there.
struct Chosen {
  Sweep sweep;
  std::string hash;
};

// The latest sweep, of which only hashes are wanted; none if there is none, or it cannot be read.
std::optional<Sweep> earlier_sweep(const SweepFolder& folder) {
  if (!SweepFolder::is_one(folder.path())) return std::nullopt;
  try {
    return folder.sweep();
  } catch (const TraceError&) {
    return std::nullopt;
  }
}

// Calls keep(). A list needs nothing of what is kept for later, so that whoever may only
// read a folder can print it.
template <class Keep>
void keep_unless_listing(const CommandLine& line, const Keep& keep) {
  try {
    keep();
  } catch (const IoError&) {
    if (!line.has("list")) throw;
  }
}

Chosen choose(const CommandLine& line, const SweepRequest& request, const SweepFolder& folder) {
  const std::vector<std::string> plans = line.positionals("PLAN", 0, 1);
  if (request.hash) {
    if (!plans.empty()) throw UsageError("--sweep stands for the PLAN");
    return {folder.sweep(request.hash), *request.hash};
  }
  if (plans.empty()) {
    if (!SweepFolder::is_one(folder.path()))
      throw UsageError("no PLAN, and none in " + one_line(without_middle(folder.path())));
    Chosen latest{folder.sweep(), ""};
    keep_unless_listing(line, [&] { latest.hash = folder.keep_sweep(latest.sweep); });
    return latest;
  }
  const std::optional<Sweep> earlier = earlier_sweep(folder);
  Progress progress("hashing", !line.has("quiet"));
  Chosen chosen{resolve(read_plan(plans.front()), earlier ? &*earlier : nullptr, header_options(line),
                        [&](int64_t done, int64_t whole) { progress.update(done, whole); }),
                ""};
  keep_unless_listing(line, [&] { chosen.hash = folder.keep_sweep(chosen.sweep); });
  return chosen;
}

int be_worker(const CommandLine& line, const SweepFolder& folder, const SweepRequest& request) {
  apply_threads(line);
  const Sweep sweep = folder.sweep(line.required("sweep"));
  const WorkerOptions options{request.worker.index, request.worker.count, request.retries};
  try {
    work(folder, sweep, schedule(folder, sweep, kept_rates(folder)), options,
         [](const ItemReport& report) { std::cout << line_of(report) << std::flush; });
  } catch (const DeviceError& error) {
    std::cerr << "kvbound: " << one_line(error.what()) << "\n";
    return kReplaceWorker;
  }
  return kPass;
}

// The items of a sweep, and sums over them.
struct Agenda {
  std::vector<PlannedItem> items;
  int64_t done = 0;
  double cost_left = 0;
};

Agenda agenda_of(const SweepFolder& folder, const Sweep& sweep, const CostRates& rates) {
  Agenda agenda{schedule(folder, sweep, rates), 0, 0};
  for (const PlannedItem& item : agenda.items) {
    if (item.done) {
      ++agenda.done;
    } else {
      agenda.cost_left += item.cost;
    }
  }
  return agenda;
}

std::string list_of(const Sweep& sweep, const Agenda& agenda, const CostRates& rates) {
  std::vector<TableRow> rows{{"item", "state", rates.known() ? "seconds" : "cost"}};
  for (const PlannedItem& item : agenda.items) {
    rows.push_back(
        {text_of(item.item, sweep), item.done ? "done" : "to do", fmt::format("{:.3g}", item.cost)});
  }
  std::string text = table(rows, {.left_columns = 2, .text = terminal_style(), .alarming = {}});
  text += fmt::format("\n{} items, {} done; to do: {}\n", agenda.items.size(), agenda.done,
                      rates.known() ? fmt::format("{:.3g} s of one process, by rates of {} finished items",
                                                  agenda.cost_left, rates.measured)
                                    : "not known before items are finished (--calibrate K computes some)");
  return text;
}

// Computes the smallest items, in this process.
void calibrate(const SweepFolder& folder, const Sweep& sweep, int64_t most, bool quiet) {
  std::vector<PlannedItem> items = schedule(folder, sweep, kept_rates(folder));
  std::erase_if(items, &PlannedItem::done);
  std::ranges::reverse(items);
  items.resize(std::min(items.size(), static_cast<size_t>(most)));
  Progress progress("calibrating", !quiet);
  int64_t done = 0;
  work(folder, sweep, items, {}, [&](const ItemReport&) { progress.update(++done, std::ssize(items)); });
}

std::string simulation_text(const SweepFolder& folder, const Sweep& sweep, int64_t items, int64_t seed) {
  const MeasuredItems measured = measured_items(folder, sweep);
  if (measured.seconds.empty())
    throw UsageError("--simulate: no item is finished; compute some (--calibrate K)");
  std::vector<int64_t> workers;
  for (int64_t count = 1; count <= 1024; count *= 2) workers.push_back(count);
  std::vector<TableRow> rows{{"workers", "seconds", "no less than", "ratio"}};
  for (const Makespan& found : simulate(measured, items, workers, seed)) {
    rows.push_back({std::to_string(found.workers), fmt::format("{:.1f}", found.makespan),
                    fmt::format("{:.1f}", found.bound), fmt::format("{:.4f}", found.makespan / found.bound)});
  }
  double sum = 0;
  for (const double seconds : measured.seconds) sum += seconds;
  return fmt::format(
      "{} items drawn from {} measured ones: {:.3g} s each on average, {:.2g} ms of them for the sweep itself\n\n{}",
      items, measured.seconds.size(), sum / static_cast<double>(measured.seconds.size()) + measured.overhead,
      1e3 * measured.overhead, table(rows, {.left_columns = 0, .text = terminal_style(), .alarming = {}}));
}

// Names the items that were given up; the exit code.
int tell_given_up(const Sweep& sweep, const std::vector<PlannedItem>& items, const LocalOutcome& outcome) {
  for (const PlannedItem& item : items) {
    const auto found = outcome.given_up.find(item.file);
    if (found == outcome.given_up.end()) continue;
    std::cerr << fmt::format("kvbound: {}: given up after {} tries; the last: {}\n",
                             text_of(item.item, sweep), found->second.size(),
                             one_line(without_middle(found->second.back().problem.value_or(""))));
  }
  return outcome.given_up.empty() ? outcome.exit_code : kWorld;
}

int run_here(const SweepRequest& request, const SweepFolder& folder, const Chosen& chosen,
             const Agenda& agenda) {
  const LocalOptions options{request.jobs, request.share, request.retries, request.threads.value_or(0)};
  const auto start = std::chrono::steady_clock::now();
  LocalOutcome outcome;
  {
    Progress progress("sweeping", !request.quiet);
    std::vector<double> costs(agenda.items.size());
    for (const PlannedItem& item : agenda.items) costs[item.number] = item.cost;
    double cost_done = 0;
    int64_t done = 0;
    outcome = run_locally(folder, chosen.hash, options, [&](int64_t number, double) {
      cost_done += costs.at(static_cast<size_t>(number));
      progress.update(static_cast<int64_t>(1e6 * std::min(1.0, cost_done / agenda.cost_left)), 1'000'000,
                      fmt::format("{} of {} items", ++done, std::ssize(agenda.items) - agenda.done));
    });
  }
  if (!request.quiet) {
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    std::cout << fmt::format("{} items computed in {:.1f} s\n", outcome.done, wall.count()) << std::flush;
  }
  return tell_given_up(chosen.sweep, agenda.items, outcome);
}

// Waits for items that another driver's workers compute.
void wait_for_others(const SweepFolder& folder, const Agenda& agenda) {
  for (const PlannedItem& item : agenda.items) {
    while (!item.done && !folder.has(item.file) && !folder.claim(item.file))
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// Waits until no task of the array waits or runs any more.
void wait_for(const std::string& job, const SweepFolder& folder, const Agenda& agenda, bool quiet) {
  Progress progress("job " + job, !quiet);
  while (is_alive(folder, job)) {
    const auto results = folder.results();
    const auto done = std::ranges::count_if(
        agenda.items, [&](const PlannedItem& item) { return item.done || results.contains(item.file); });
    progress.update(done, std::ssize(agenda.items), fmt::format("{} of {} items", done, agenda.items.size()));
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
}

int run_on_slurm(const CommandLine& line, const SweepRequest& request, const SweepFolder& folder,
                 const Chosen& chosen, const Agenda& agenda) {
  const bool gpu =
      std::ranges::any_of(chosen.sweep.runs, [](const Run& run) { return run.backend == "cuda"; });
  const SlurmOptions options{
      request.jobs, request.retries, request.threads, gpu, line.text("sbatch").value_or(""),
      request.json, request.csv};
  const std::string job = submit_array(folder, chosen.hash, options);
  std::cout << fmt::format("job {}: {} tasks for {} items; logs in {}/slurm\n", job, options.jobs,
                           std::ssize(agenda.items) - agenda.done, one_line(without_middle(folder.path())))
            << std::flush;
  if (options.json || options.csv) submit_gathering(folder, chosen.hash, options, job);
  if (!line.has("wait")) return kPass;
  wait_for(job, folder, agenda, request.quiet);
  return tell_missing(folder, chosen.sweep, Gathering(folder, chosen.sweep, false).missing());
}

}  // namespace

int sweep_command(const Arguments& arguments) {
  CommandLine line = sweep_command_line();
  if (!line.parse(arguments)) return kPass;
  const SweepRequest request = parse_sweep_request(line);
  OutputPaths taken;
  for (const std::string& plan : line.positionals("PLAN", 0, 1)) taken.add_input(plan);
  Outputs outputs(line, taken, "replay");
  SweepFolder folder(line.required("out"));
  if (line.has("worker")) return be_worker(line, folder, request);
  const Chosen chosen = choose(line, request, folder);
  // The tasks of an array leave this to the command that submitted them.
  const bool is_task = request.hash && line.has("share");
  const bool only_looks = request.simulate || (line.has("list") && !request.calibrate);
  if (!is_task) tell_damaged(folder, chosen.sweep, {.remove = !only_looks});
  if (request.simulate) {
    std::cout << simulation_text(folder, chosen.sweep, *request.simulate, request.seed);
    return kPass;
  }
  if (request.calibrate) {
    apply_threads(line);
    calibrate(folder, chosen.sweep, *request.calibrate, request.quiet);
  }
  const CostRates rates = measured_rates(folder, chosen.sweep);
  keep_unless_listing(line, [&] { keep_rates(folder, rates); });
  const Agenda agenda = agenda_of(folder, chosen.sweep, rates);
  if (line.has("list")) {
    std::cout << list_of(chosen.sweep, agenda, rates);
    return kPass;
  }
  if (!line.has("sweep")) folder.forget_attempts();
  if (!request.quiet) {
    std::cout << fmt::format("{} traces, {} runs, {} items, of which {} are done\n",
                             chosen.sweep.traces.size(), chosen.sweep.runs.size(), agenda.items.size(),
                             agenda.done)
              << std::flush;
  }
  if (request.slurm) return run_on_slurm(line, request, folder, chosen, agenda);
  const int code = run_here(request, folder, chosen, agenda);
  if (code != kPass) return code;
  if (line.has("share")) return kPass;  // others compute the rest
  wait_for_others(folder, agenda);
  if (!outputs.has_json() && !outputs.has_csv())
    return tell_missing(folder, chosen.sweep, Gathering(folder, chosen.sweep, false).missing());
  return gather_files(folder, chosen.sweep, outputs, {.quiet = request.quiet});
}

}  // namespace kvbound::sim
