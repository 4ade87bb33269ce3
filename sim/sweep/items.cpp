#include "items.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/sha256.hpp>

namespace kvbound::sim {
namespace {

using Document = nlohmann::ordered_json;

// 96 bits for a million items; there are few different sets of runs and computations.
constexpr size_t kContentDigits = 24, kRunDigits = 12, kComputationDigits = 8;

std::string digest(const Document& json, size_t digits) {
  return traces::sha256_of(json.dump()).substr(0, digits);
}

// The runs of each block of policies.
using RunBlocks = std::vector<std::shared_ptr<const std::vector<size_t>>>;

RunBlocks run_blocks(const Sweep& sweep) {
  std::map<std::string, size_t> policies;  // with their numbers, in the order in which they first appear
  std::vector<std::vector<size_t>> blocks;
  for (size_t r = 0; r < sweep.runs.size(); ++r) {
    const auto number = policies.emplace(canonical(sweep.runs[r].policy.policy), policies.size()).first;
    const size_t block = number->second / static_cast<size_t>(sweep.policies_per_item);
    if (block >= blocks.size()) blocks.resize(block + 1);
    blocks[block].push_back(r);
  }
  RunBlocks shared;
  for (std::vector<size_t>& block : blocks)
    shared.push_back(std::make_shared<const std::vector<size_t>>(std::move(block)));
  return shared;
}

// Adds a trace's items to a list.
void add_items(const Sweep& sweep, size_t trace, const RunBlocks& blocks, std::vector<SweepItem>& items) {
  const std::vector<int64_t>& layers = sweep.traces[trace].scope.layers;
  for (int64_t first = 0; first < std::ssize(layers); first += sweep.layers_per_item) {
    const auto begin = layers.begin() + first;
    const auto count = std::min(sweep.layers_per_item, std::ssize(layers) - first);
    for (const auto& runs : blocks) items.push_back({trace, {begin, begin + count}, runs});
  }
}

}  // namespace

std::vector<SweepItem> items_of(const Sweep& sweep, size_t trace) {
  std::vector<SweepItem> items;
  add_items(sweep, trace, run_blocks(sweep), items);
  return items;
}

std::vector<SweepItem> items_of(const Sweep& sweep) {
  const RunBlocks blocks = run_blocks(sweep);
  std::vector<SweepItem> items;
  for (size_t t = 0; t < sweep.traces.size(); ++t) add_items(sweep, t, blocks, items);
  return items;
}

std::string text_of(const SweepItem& item, const Sweep& sweep) {
  const traces::TraceInfo& info = sweep.traces[item.trace].info;
  std::vector<int64_t> numbers;
  for (const int64_t layer : item.layers) numbers.push_back(info.layer_number(layer));
  return fmt::format("{}, layer{} {}, {} run{}", traces::printable_path(info.path),
                     item.layers.size() == 1 ? "" : "s", without_middle(traces::layer_list(numbers)),
                     item.runs->size(), item.runs->size() == 1 ? "" : "s");
}

std::string key_of(const Run& run) {
  return canonical(run.policy.policy) + " " + to_string(run.budget) + " " + run.backend;
}

bool depends_on_trace(const Run& run) {
  return given_file(run.policy.policy.host) || head_scores(run.policy.policy);
}

std::string key_of(const Run& run, const SweepTrace& trace) {
  std::string key = key_of(run);
  if (const std::string* const file = given_file(run.policy.policy.host))
    key += " " + trace.given.at(*file).sha256;
  // The layers among which headkv's budget is shared are those of the trace's whole replay.
  if (const HeadScores* const scores = head_scores(run.policy.policy))
    key += " " + scores->sha256 + " " + traces::layer_list(trace.scope.layers);
  return key;
}

std::string digest_of_runs(const std::vector<std::string>& keys) { return digest(keys, kRunDigits); }

ItemKeys::ItemKeys(const Sweep& sweep)
    : sweep_(sweep), computation_(digest(fields_of(sweep.computation), kComputationDigits)) {
  for (const Run& run : sweep.runs) {
    depends_on_trace_ = depends_on_trace_ || depends_on_trace(run);
    if (std::ranges::find(backends_, run.backend) == backends_.end()) backends_.push_back(run.backend);
  }
}

ItemKey ItemKeys::of(const SweepItem& item) {
  const SweepTrace& trace = sweep_.traces[item.trace];
  std::string& of_runs = of_runs_[{depends_on_trace_ ? item.trace : 0, *item.runs}];
  if (of_runs.empty()) {
    std::vector<std::string> runs;
    for (const size_t r : *item.runs) runs.push_back(key_of(sweep_.runs[r], trace));
    of_runs = digest_of_runs(runs);
  }
  const Document content{{"trace", trace.sha256},
                         {"heads", name(trace.info.heads)},
                         {"layers", item.layers},
                         {"steps", trace.scope.steps},
                         {"recall_of", trace.scope.recall_of},
                         {"merge_bounds", trace.scope.merge_bounds},
                         {"centred_bound", trace.scope.centred_bound},
                         {"backends", backends_}};
  return {digest(content, kContentDigits), of_runs, computation_};
}

}  // namespace kvbound::sim
