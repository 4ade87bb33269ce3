#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/text_options.hpp>

#include "commands.hpp"
#include "gather_files.hpp"
#include "run_options.hpp"

namespace kvbound::sim {
namespace {

const char* const kGatherDetails =
    R"(Puts the results of kvbound sweep together: the same JSON, CSV and tables as one kvbound replay of everything, bit
for bit but for times and machines, in whatever order and on however many machines they were computed. Works trace
by trace: memory is that of one trace's results.

Results of another build of the program, another compiler, BLAS kernel or GPU are not mixed in unless --mixed is
given. If results are missing, or damaged, they are named and nothing is written; with --partial, traces that lack
some are left out and the others are gathered.

Exit code 1 if a bound is violated, 5 if results are missing.
)";

const std::vector<Example> kGatherExamples{
    {"kvbound sweep sim/sweep/plan.json --out study --jobs 2"},
    {"kvbound gather study --json study.json --csv study.csv"},
    {"kvbound gather study --partial --columns perturbation,recall"},
};

}  // namespace

int gather_command(const Arguments& arguments) {
  CommandLine line("gather DIR [options]: the results of a sweep as those of one replay", kGatherDetails,
                   kGatherExamples);
  add_columns_option(line, replay_columns());
  add_output_options(line, "layer, step and query head");
  line.add("sweep", "HASH", "the sweep of that hash in DIR (default: the latest)");
  line.add_flag("mixed", "also take results of other builds, compilers, BLAS kernels and GPUs");
  line.add_flag("partial", "leave out traces of which results are missing");
  add_text_options(line);
  line.add_flag("quiet", "no progress and no tables");
  if (!line.parse(arguments)) return kPass;
  const std::string path = line.positionals("DIR", 1, 1).front();
  const auto hash = sweep_hash(line);
  OutputPaths taken;
  taken.add_input(path + "/plan.json");
  Outputs outputs(line, taken, "replay");
  const GatherRequest request{line.has("mixed"), line.has("partial"), line.has("quiet"), text_style(line),
                              chosen_columns(line, replay_columns())};
  if (!SweepFolder::is_one(path))
    throw TraceError(path, -1, "", "is no folder of a sweep: it has no plan.json");
  SweepFolder folder(path);
  const Sweep sweep = folder.sweep(hash);
  tell_damaged(folder, sweep, {.mixed = request.mixed, .refuse_undamaged = !request.partial});
  return gather_files(folder, sweep, outputs, request);
}

}  // namespace kvbound::sim
