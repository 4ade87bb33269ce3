// Files of sweeps' folders, and what their workers write.
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/sweep/costs.hpp>
#include <kvbound/sim/sweep/item_result.hpp>
#include <kvbound/sim/sweep/items.hpp>
#include <kvbound/sim/sweep/local_engine.hpp>
#include <kvbound/sim/sweep/plan.hpp>
#include <kvbound/sim/sweep/sweep_folder.hpp>
#include <kvbound/traces/sha256.hpp>

#include "reader.hpp"

namespace kvbound::fuzz {

void read_plan(Folder& folder, Parts parts) { sim::read_plan(folder.write("plan.json", parts[0])); }

void read_sweep(Folder&, Parts parts) {
  sim::items_of(sim::parse_sweep("sweep.json", std::string(parts[0])));
}

void read_item_result(Folder&, Parts parts) {
  sim::item_result_of("results", traces::sha256_of(parts[0]) + std::string(parts[0]));
}

// What is damaged counts as a try that says nothing.
void read_attempts(Folder& folder, Parts parts) {
  folder.make_folder("attempts");
  folder.write("attempts/item", parts[0]);
  const auto attempts = sim::SweepFolder(folder.path()).attempts("item");
  if (attempts.size() == 1 && attempts[0].host.empty()) throw TraceError("", -1, "", "damaged");
}

// What is damaged counts as unknown.
void read_rates(Folder& folder, Parts parts) {
  folder.write("rates.json", parts[0]);
  if (!sim::kept_rates(sim::SweepFolder(folder.path())).known()) throw TraceError("", -1, "", "unknown");
}

void read_worker_line(Folder&, Parts parts) {
  if (!sim::worker_line_of(std::string(parts[0]))) throw TraceError("", -1, "", "no worker's line");
}

}  // namespace kvbound::fuzz
