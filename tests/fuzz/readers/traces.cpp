// Traces, dumps of replays, and kernels' files.
#include <algorithm>
#include <array>
#include <string_view>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/check/against.hpp>
#include <kvbound/sim/check/attention.hpp>
#include <kvbound/sim/check/check_file.hpp>
#include <kvbound/sim/check/compact.hpp>
#include <kvbound/sim/check/compression.hpp>
#include <kvbound/sim/check/topk.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/claims/dump_file.hpp>
#include <kvbound/traces/given_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "reader.hpp"

namespace kvbound::fuzz {
namespace {

void read_layers(const traces::Trace& trace) {
  for (int64_t layer = 0; layer < trace.info().layers; ++layer)
    trace.read_layer(layer, {.attention_output = true});
  trace.tokens();
}

struct Operation {
  std::string_view name;
  sim::CheckResult (*check)(sim::CheckFile&);
};
constexpr std::array kOperations{
    Operation{"attention", [](sim::CheckFile& file) { return sim::check_attention(file, {}); }},
    Operation{"topk", [](sim::CheckFile& file) { return sim::check_topk(file, {}); }},
    Operation{"compact", sim::check_compact},
    Operation{"norms", sim::check_norms},
    Operation{"scores", sim::check_scores},
    Operation{"merge", sim::check_merge}};

}  // namespace

void read_trace(Folder& folder, Parts parts) {
  read_layers(traces::Trace(folder.write("trace.safetensors", parts[0])));
}

void read_trace_shards(Folder& folder, Parts parts) {
  folder.write("shard-0.safetensors", parts[1]);
  read_layers(traces::Trace(folder.write("trace.index.json", parts[0])));
}

void read_dump(Folder& folder, Parts parts) {
  const traces::Trace trace(folder.write("trace.safetensors", parts[0]));
  const sim::DumpFile dump(folder.write("dump.safetensors", parts[1]), trace.info(),
                           traces::kDefaultHeaderLimit);
  const sim::DumpInfo& info = dump.info();
  for (const int64_t layer : info.layers) {
    const sim::TestedImplementation implementation{dump.policy_of(layer),
                                                   info.entries,
                                                   info.steps,
                                                   info.declared.arithmetic(),
                                                   info.declared.input_storage(),
                                                   info.declared.merged_storage(),
                                                   info.budgets[layer]};
    sim::judge_layer(trace.read_layer(layer), implementation, dump.read_layer(layer));
  }
}

// Of a trace of 1 layer, 2 query heads on 1 KV head, 8 prompt tokens.
void read_given(Folder& folder, Parts parts) {
  const traces::GivenFile file(
      folder.write("given.safetensors", parts[0]),
      {"trace_sha256", "abc", "the hash of small.safetensors", {2, 1, 2, 3}, 1, 8, {0}});
  file.read_layer(0);
}

void read_kernel_file(Folder& folder, Parts parts) {
  const auto operation = std::ranges::find(kOperations, parts[0], &Operation::name);
  if (operation == kOperations.end()) throw TraceError("", -1, "", "no operation");
  sim::CheckFile file(folder.write("kernel", parts[1]), traces::kDefaultHeaderLimit, {});
  const sim::CheckResult result = operation->check(file);
  if (result.cases) sim::compare_results(result, result);
}

}  // namespace kvbound::fuzz
