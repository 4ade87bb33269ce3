#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/report/table.hpp>
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

constexpr int64_t kMostJobs = 100'000;

const char* const kSweepDetails = R"(
A sweep is a replay that many processes share. PLAN is a JSON object:

  {"format": "kvbound-sweep-plan", "version": 1,
   "traces": ["traces/samples/*.safetensors"], "policies": ["snapkv", "snapkv+critical", "random"],
   "budgets": ["5%", "20%"], "base": "snapkv"}

and may have backends, layers, steps, recall, merge_bounds (as kvbound replay's options), seeds (of policies that
draw random numbers), layers_per_item (1) and policies_per_item (all: a layer is read once for all policies).

Its items, some layers of a trace through some policies at all budgets, are computed one by one, the largest
first. Results are files in DIR, each whole or not there, named by what they depend on: a sweep that was killed
goes on when it is called again, and one whose plan has more traces, policies or budgets computes those alone.
Several machines that share DIR may call it at a time. Without PLAN, the latest plan of DIR goes on.

An item that fails is tried again, then named. kvbound gather DIR gives what one replay of everything gives.

Examples:
  kvbound sweep plan.json --out study --jobs 4 --json study.json
  kvbound sweep plan.json --out study --list
  kvbound sweep plan.json --out study --engine slurm --jobs 100 --sbatch "--partition=long --time=4:00:00"
  kvbound sweep --out study --simulate 100000

Exit code 1 if a bound is violated (with --json or --csv), 4 if an item was given up, 5 if results are missing.
)";

CommandLine sweep_command_line() {
  CommandLine line("sweep [PLAN] --out DIR [options]: a replay of many traces by many processes",
                   kSweepDetails);
  line.add("out", "DIR", "folder of the sweep; made if it is not there");
  line.add("engine", "E", "local (default): processes on this machine; slurm: a job array");
  line.add("jobs", "N", "processes, or tasks of the array (default: 1)");
  line.add("threads", "N",
           "threads of each process (default: the processors divided by the processes; what Slurm gives)");
  line.add("share", "I/N", "begin with share I of N, 0 to N-1, as one of N machines that share DIR");
  line.add("retries", "R", "further tries of an item that fails (default: 2)");
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
  line.add_flag("quiet", "no progress and no summary");
  return line;
}

Share share_of(const CommandLine& line, const char* option) {
  const std::string text = line.text(option).value_or("0/1");
  const size_t slash = text.find('/');
  const auto index = parse_integer(text.substr(0, slash));
  const auto count = slash == std::string::npos ? std::nullopt : parse_integer(text.substr(slash + 1));
  if (!index || !count || *count < 1 || *index < 0 || *index >= *count)
    throw UsageError(fmt::format("--{} '{}': expected I/N with 0 <= I < N", option, one_line(text)));
  return {*index, *count};
}

// The sweep that the command line names, and its hash in the folder.
struct Chosen {
  Sweep sweep;
  std::string hash;
};

Chosen choose(const CommandLine& line, const SweepFolder& folder) {
  const std::vector<std::string> plans = line.positionals("PLAN", 0, 1);
  if (const auto hash = line.text("sweep")) {
    if (!plans.empty()) throw UsageError("--sweep stands for the PLAN");
    return {folder.sweep(hash), *hash};
  }
  std::optional<Sweep> earlier;
  if (SweepFolder::is_one(folder.path())) earlier = folder.sweep();
  if (plans.empty()) {
    if (!earlier) throw UsageError("no PLAN, and none in " + one_line(folder.path()));
    return {*earlier, folder.keep(*earlier)};
  }
  Progress progress("hashing", !line.has("quiet"));
  Sweep sweep = resolve(read_plan(plans.front()), earlier ? &*earlier : nullptr,
                        [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  const std::string hash = folder.keep(sweep);
  return {std::move(sweep), hash};
}

int be_worker(const CommandLine& line, const SweepFolder& folder) {
  apply_threads(line);
  const Share share = share_of(line, "worker");
  const Sweep sweep = folder.sweep(line.required("sweep"));
  const WorkerOptions options{share.index, share.count, line.integer("retries", 0, INT32_MAX, 2)};
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
  std::string text = table(rows, {.left_columns = 2, .colour = colour_wanted(), .alarming = {}});
  text += fmt::format("\n{} items, {} done; to do: {}\n", agenda.items.size(), agenda.done,
                      rates.known() ? fmt::format("{:.3g} s of one process, by rates of {} finished items",
                                                  agenda.cost_left, rates.measured)
                                    : "not known before items are finished (--calibrate K computes some)");
  return text;
}

// Computes the smallest items, in this process.
void calibrate(const CommandLine& line, const SweepFolder& folder, const Sweep& sweep) {
  const int64_t most = line.integer("calibrate", 1, INT32_MAX, 1);
  std::vector<PlannedItem> items = schedule(folder, sweep, kept_rates(folder));
  std::erase_if(items, &PlannedItem::done);
  std::ranges::reverse(items);
  items.resize(std::min(items.size(), static_cast<size_t>(most)));
  apply_threads(line);
  Progress progress("calibrating", !line.has("quiet"));
  int64_t done = 0;
  work(folder, sweep, items, {}, [&](const ItemReport&) { progress.update(++done, std::ssize(items)); });
}

std::string simulation_text(const CommandLine& line, const SweepFolder& folder, const Sweep& sweep) {
  const MeasuredItems measured = measured_items(folder, sweep);
  if (measured.seconds.empty())
    throw UsageError("--simulate: no item is finished; compute some (--calibrate K)");
  const int64_t items = line.integer("simulate", 1, 100'000'000, 0);
  std::vector<int64_t> workers;
  for (int64_t count = 1; count <= 1024; count *= 2) workers.push_back(count);
  std::vector<TableRow> rows{{"workers", "seconds", "no less than", "ratio"}};
  for (const Makespan& found : simulate(measured, items, workers, line.integer("seed", 0, INT64_MAX, 1))) {
    rows.push_back({std::to_string(found.workers), fmt::format("{:.1f}", found.makespan),
                    fmt::format("{:.1f}", found.bound), fmt::format("{:.4f}", found.makespan / found.bound)});
  }
  double sum = 0;
  for (const double seconds : measured.seconds) sum += seconds;
  return fmt::format(
      "{} items drawn from {} measured ones: {:.3g} s each on average, {:.2g} ms of them for the sweep itself\n\n{}",
      items, measured.seconds.size(), sum / static_cast<double>(measured.seconds.size()) + measured.overhead,
      1e3 * measured.overhead, table(rows, {.left_columns = 0, .colour = colour_wanted(), .alarming = {}}));
}

// Names the items that were given up; the exit code.
int tell_given_up(const Sweep& sweep, const std::vector<PlannedItem>& items, const LocalOutcome& outcome) {
  for (const PlannedItem& item : items) {
    const auto found = outcome.given_up.find(item.file);
    if (found == outcome.given_up.end()) continue;
    std::cerr << fmt::format("kvbound: {}: given up after {} tries; the last: {}\n",
                             text_of(item.item, sweep), found->second.size(),
                             one_line(found->second.back().problem.value_or("")));
  }
  return outcome.given_up.empty() ? outcome.exit_code : kWorld;
}

int run_here(const CommandLine& line, const SweepFolder& folder, const Chosen& chosen, const Agenda& agenda) {
  LocalOptions options;
  options.jobs = line.integer("jobs", 1, kMostJobs, 1);
  options.share = share_of(line, "share");
  options.retries = line.integer("retries", 0, INT32_MAX, options.retries);
  options.threads = line.integer("threads", 1, 256, 0);
  const auto start = std::chrono::steady_clock::now();
  LocalOutcome outcome;
  {
    Progress progress("sweeping", !line.has("quiet"));
    double cost_done = 0;
    std::vector<double> costs(agenda.items.size());
    for (const PlannedItem& item : agenda.items) costs[item.number] = item.cost;
    int64_t done = 0;
    outcome = run_locally(folder, chosen.hash, options, [&](int64_t number, double) {
      cost_done += costs.at(static_cast<size_t>(number));
      const int64_t whole = std::ssize(agenda.items) - agenda.done;
      progress.update(static_cast<int64_t>(1e6 * cost_done), static_cast<int64_t>(1e6 * agenda.cost_left),
                      fmt::format("{} of {} items", ++done, whole));
    });
  }
  if (!line.has("quiet")) {
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    std::cout << fmt::format("{} items computed in {:.1f} s\n", outcome.done, wall.count()) << std::flush;
  }
  return tell_given_up(chosen.sweep, agenda.items, outcome);
}

int run_on_slurm(const CommandLine& line, const SweepFolder& folder, const Chosen& chosen,
                 const Agenda& agenda) {
  SlurmOptions options;
  options.jobs = line.integer("jobs", 1, kMostJobs, 1);
  options.retries = line.integer("retries", 0, INT32_MAX, options.retries);
  if (line.has("threads")) options.threads = line.integer("threads", 1, 256, 1);
  options.gpu = std::ranges::any_of(chosen.sweep.runs, [](const Run& run) { return run.backend == "cuda"; });
  options.sbatch = line.text("sbatch").value_or("");
  options.json = line.text("json");
  options.csv = line.text("csv");
  const std::string job = submit(folder, chosen.hash, options);
  std::cout << fmt::format("job {}: {} tasks for {} items; logs in {}/slurm\n", job, options.jobs,
                           std::ssize(agenda.items) - agenda.done, one_line(folder.path()))
            << std::flush;
  if (!line.has("wait")) return kPass;
  {
    Progress progress("job " + job, !line.has("quiet"));
    while (is_alive(job)) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      const auto results = folder.results();
      const auto done = std::ranges::count_if(
          agenda.items, [&](const PlannedItem& item) { return item.done || results.contains(item.file); });
      progress.update(done, std::ssize(agenda.items),
                      fmt::format("{} of {} items", done, agenda.items.size()));
    }
  }
  return tell_missing(folder, chosen.sweep, Gathering(folder, chosen.sweep, false).missing());
}

void check_options(const CommandLine& line, bool slurm) {
  if (slurm) {
    refuse_options(line, {"share", "calibrate", "simulate", "list"}, "does not go with --engine slurm");
  } else {
    refuse_options(line, {"sbatch", "wait"}, "is for --engine slurm");
  }
}

}  // namespace

int sweep_command(const Arguments& arguments) {
  CommandLine line = sweep_command_line();
  if (!line.parse(arguments)) return kPass;
  const std::string engine = line.text("engine").value_or("local");
  if (engine != "local" && engine != "slurm")
    throw UsageError(fmt::format("--engine '{}': expected local or slurm", one_line(engine)));
  check_options(line, engine == "slurm");
  const SweepFolder folder(line.required("out"));
  if (line.has("worker")) return be_worker(line, folder);
  const Chosen chosen = choose(line, folder);
  if (line.has("simulate")) {
    std::cout << simulation_text(line, folder, chosen.sweep);
    return kPass;
  }
  if (!line.has("sweep")) folder.forget_attempts();
  if (line.has("calibrate")) calibrate(line, folder, chosen.sweep);
  const CostRates rates = measured_rates(folder, chosen.sweep);
  keep_rates(folder, rates);
  const Agenda agenda = agenda_of(folder, chosen.sweep, rates);
  if (line.has("list")) {
    std::cout << list_of(chosen.sweep, agenda, rates);
    return kPass;
  }
  if (!line.has("quiet")) {
    std::cout << fmt::format("{} traces, {} runs, {} items, of which {} are done\n",
                             chosen.sweep.traces.size(), chosen.sweep.runs.size(), agenda.items.size(),
                             agenda.done)
              << std::flush;
  }
  if (engine == "slurm") return run_on_slurm(line, folder, chosen, agenda);
  const int code = run_here(line, folder, chosen, agenda);
  if (code != kPass || (!line.has("json") && !line.has("csv"))) return code;
  return gather_files(folder, chosen.sweep,
                      {line.text("json"), line.text("csv"), false, false, line.has("quiet")});
}

}  // namespace kvbound::sim
