// Documents that commands write and read again: tasks, results, reports, times, instances.
#include <memory>
#include <span>
#include <string>

#include <kvbound/sim/bench/peer.hpp>
#include <kvbound/sim/cli/prove/counterexample.hpp>
#include <kvbound/sim/evaluate/results_file.hpp>
#include <kvbound/sim/evaluate/tasks.hpp>
#include <kvbound/sim/report/page/page.hpp>

#include "reader.hpp"

namespace kvbound::fuzz {

// By a model whose vocabulary is bytes, which may be given text.
void read_tasks(Folder&, Parts parts) { sim::kinds_of(sim::tasks_of("tasks", parts[0], 256)); }

void read_results(Folder& folder, Parts parts) {
  const nlohmann::ordered_json evaluation{{"model", "m"}, {"runs", {"snapkv 20%"}}};
  const sim::ResultsFile results(folder.write("results", parts[0]), evaluation);
  results.find("task 0");
}

void read_report_document(Folder& folder, Parts parts) {
  size_t taken = 0;
  const std::unique_ptr<const sim::Document> document =
      sim::read_document(folder.write("document.json", parts[0]), taken);
  sim::html_page(std::span(&document, 1), "kvbound report");
}

void read_peer(Folder& folder, Parts parts) {
  sim::peer_text(sim::read_peer(folder.write("peer.json", parts[0])));
}

void read_instances(Folder& folder, Parts parts) {
  sim::read_instances(folder.write("instances.json", parts[0]));
}

}  // namespace kvbound::fuzz
