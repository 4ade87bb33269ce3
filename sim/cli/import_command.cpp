#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/replay/imported_dump.hpp>
#include <kvbound/traces/flashinfer/attention_call.hpp>
#include <kvbound/traces/flashinfer/attention_function.hpp>
#include <kvbound/traces/flashinfer/import_trace.hpp>
#include <kvbound/traces/flashinfer/recorded_session.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kImportDetails =
    R"(DIR, in the examples flashinfer_dumps, is the FLASHINFER_DUMP_DIR of a program that ran with FLASHINFER_LOGLEVEL=10 and
FLASHINFER_DUMP_SAFETENSORS=1. Its calls are numbered from 1, as FlashInfer's replay numbers them. The calls of batch and
single decode and prefill attention can be imported: of one request, keys, values and queries become a trace, in which
each chosen call is a layer and W^O, which is not recorded, the identity of every head.

With --dump the kernels' outputs become a dump, for `kvbound diff` to judge by bounds derived for the kernels'
arithmetic: sums in F32, and attention weights and outputs of a split cache that are rounded to 16 bits. Without it they
become the trace's attention_output, which `kvbound inspect --verify` compares with a computation in single precision.

Refused, with a line that names the argument: what a trace cannot represent (positions encoded in the kernel, capped
logits, sliding windows that hide tokens, masks other than the causal one, sinks, caches of 8 or 4 bits), calls in CUDA
graphs, and calls that did not finish.
)";

const std::vector<Example> kImportExamples{
    {"kvbound import flashinfer flashinfer_dumps --list", "a GPU"},
    {"kvbound import flashinfer flashinfer_dumps --call 3 --request 0 trace.safetensors --dump kernel.safetensors",
     "a GPU"},
    {"kvbound diff trace.safetensors kernel.safetensors", "a GPU"},
};

CommandLine import_command_line() {
  CommandLine line("import flashinfer DIR [options] OUT: a trace of recorded calls of FlashInfer's kernels",
                   kImportDetails, kImportExamples);
  line.add_flag("list", "print what DIR holds, and write nothing");
  line.add("call", "N[,N]",
           "these calls, such as 3 or 3,5-7: a layer each (default: the only one that can be)");
  line.add("request", "R", "this request of the batch, from 0 (default: the only one)");
  line.add("steps", "T",
           "take the last T queries for decode steps, so that the trace can be replayed (default: 0)");
  line.add("dump", "FILE", "write the kernels' outputs as a dump, for `kvbound diff OUT FILE`");
  line.add("plan", "N", "the call of plan that the calls follow (default: the last one before each)");
  line.add("kv-layout", "NHD|HND", "the cache's layout, if the constructor was not recorded");
  line.add("sm-scale", "S", "the scale of logits, if it was given to the deprecated forward()");
  line.add_flag("causal", "the mask is causal, if that was given to the deprecated forward()");
  line.add_flag("quiet", "no progress");
  return line;
}

traces::AttentionCallOptions call_options(const CommandLine& line, const traces::RecordedSession& session) {
  traces::AttentionCallOptions options;
  if (line.has("plan")) options.plan = line.integer("plan", 1, session.size(), 1);
  options.causal = line.has("causal");
  if (const auto layout = line.text("kv-layout")) {
    if (layout != "NHD" && layout != "HND")
      throw UsageError(fmt::format("--kv-layout {}: expected NHD or HND", traces::quoted(*layout)));
    options.layout = layout == "NHD" ? traces::KvLayout::nhd : traces::KvLayout::hnd;
  }
  if (const auto scale = line.text("sm-scale")) {
    options.sm_scale = parse_real(*scale);
    if (!options.sm_scale || !(*options.sm_scale > 0))
      throw UsageError(fmt::format("--sm-scale {}: expected a positive number", traces::quoted(*scale)));
  }
  return options;
}

// What a call computed in a few words, or why it cannot be imported.
std::string call_summary(const traces::RecordedSession& session, int64_t number,
                         const traces::AttentionCallOptions& options) try {
  const traces::AttentionCall call(session, number, options);
  return fmt::format("{} request{}, {} query heads on {} KV heads, head_dim {}, {}", call.requests(),
                     call.requests() == 1 ? "" : "s", call.query_heads(), call.kv_heads(), call.head_dim(),
                     name(call.key_dtype()));
} catch (const Error& error) {
  return fmt::format("refused: {}", error.what());
}

// The function of a call, and why there is none if its record could not be read.
std::pair<std::string, std::string> function_of(const traces::RecordedSession& session, int64_t number) try {
  return {session.call(number).function(), ""};
} catch (const Error& error) {
  return {"?", fmt::format("unreadable: {}", error.what())};
}

std::string listing(const traces::RecordedSession& session, const traces::AttentionCallOptions& options) {
  std::vector<std::pair<std::string, std::string>> calls;
  size_t width = 0;
  for (int64_t number = 1; number <= session.size(); ++number) {
    auto& [function, what] = calls.emplace_back(function_of(session, number));
    width = std::max(width, function.size());
    if (traces::attention_function_named(function)) what = call_summary(session, number, options);
  }
  std::string text = fmt::format("{} calls in {}\n", calls.size(), one_line(session.folder()));
  for (size_t i = 0; i < calls.size(); ++i) {
    text += one_line(fmt::format("{:6}  {:{}}  {}", i + 1, calls[i].first, width, calls[i].second));
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

// The calls of --call; by default the only call of an attention kernel.
std::vector<int64_t> chosen_calls(const CommandLine& line, const traces::RecordedSession& session) {
  const int64_t count = session.size();
  if (const auto text = line.text("call")) {
    const auto calls = traces::parse_layer_list(*text, count + 1);
    if (!calls || calls->front() == 0) {
      throw UsageError(fmt::format("--call {}: expected ascending calls or ranges such as 3,5-7 within 1..{}",
                                   traces::quoted(*text), count));
    }
    return *calls;
  }
  std::vector<int64_t> found, unreadable;
  for (int64_t number = 1; number <= count; ++number) {
    const std::string function = function_of(session, number).first;
    if (traces::attention_function_named(function)) found.push_back(number);
    if (function == "?") unreadable.push_back(number);
  }
  if (found.empty() && !unreadable.empty()) return {unreadable.back()};  // whose error is printed
  if (found.empty()) {
    throw TraceError(session.folder(), -1, "",
                     "has no call that can be imported; expected one of " + traces::attention_functions());
  }
  if (found.size() == 1) return found;
  throw UsageError(fmt::format("{} has {} calls of attention kernels; choose by --call (--list shows them)",
                               without_middle(session.folder()), found.size()));
}

std::vector<traces::ImportedLayer> chosen_requests(
    const CommandLine& line, const std::vector<std::unique_ptr<traces::AttentionCall>>& calls) {
  std::vector<traces::ImportedLayer> layers;
  for (const auto& call : calls) {
    if (!line.has("request") && call->requests() > 1) {
      throw UsageError(fmt::format("call {} has {} requests; choose one by --request 0 to {}",
                                   call->call().name(), call->requests(), call->requests() - 1));
    }
    layers.push_back({call.get(), line.integer("request", 0, call->requests() - 1, 0)});
  }
  return layers;
}

// The files that may be written, none of which lies in DIR.
void check_outputs(const CommandLine& line, const traces::RecordedSession& session, const std::string& out,
                   const std::vector<std::unique_ptr<traces::AttentionCall>>& calls) {
  OutputPaths outputs;
  for (const auto& call : calls) {
    for (const std::string& path : call->paths()) outputs.add_input(path);
  }
  const std::filesystem::path dumps =
      std::filesystem::weakly_canonical(std::filesystem::absolute(session.folder()));
  for (const auto& [option, path] :
       {std::pair{"OUT", std::optional(out)}, std::pair{"dump", line.text("dump")}}) {
    if (!path) continue;
    const std::filesystem::path place = std::filesystem::weakly_canonical(std::filesystem::absolute(*path));
    const auto [end, ignored] = std::ranges::mismatch(dumps, place);
    if (end == dumps.end())
      throw UsageError(fmt::format("--{}: {} is in {}, which is read", option, traces::quoted(*path),
                                   without_middle(session.folder())));
    outputs.add(option, *path);
  }
}

// Flushed, so that nothing is written if it cannot be printed.
void print_summary(const std::vector<traces::ImportedLayer>& layers, const std::string& out,
                   const std::optional<std::string>& dump) {
  const traces::AttentionCall& first = *layers.front().call;
  const traces::AttentionRequest request = first.request(layers.front().request);
  std::cout << fmt::format(
      "layers: {}; {} query heads on {} KV heads, head_dim {}, {}; tokens: {}; queries: {}\n", layers.size(),
      first.query_heads(), first.kv_heads(), first.head_dim(), name(first.key_dtype()), request.tokens,
      request.queries);
  if (dump) std::cout << one_line(fmt::format("for a verdict: kvbound diff {} {}", out, *dump)) << "\n";
  flush_standard_output();
}

void import_flashinfer(const CommandLine& line, const traces::RecordedSession& session,
                       const std::string& out) {
  const traces::AttentionCallOptions options = call_options(line, session);
  std::vector<std::unique_ptr<traces::AttentionCall>> calls;
  for (const int64_t number : chosen_calls(line, session)) {
    calls.push_back(std::make_unique<traces::AttentionCall>(session, number, options));
  }
  const std::vector<traces::ImportedLayer> layers = chosen_requests(line, calls);
  const auto dump = line.text("dump");
  const int64_t steps = line.integer("steps", 0, INT32_MAX, 0);
  if (dump) require_one_arithmetic(layers);
  check_outputs(line, session, out, calls);
  if (dump) traces::OutputFile{*dump};  // it can be written, which is known before the trace is
  std::optional<Progress> progress;
  const auto update = [&](int64_t done, int64_t whole) { progress->update(done, whole); };
  std::unique_ptr<traces::SafetensorsWriter> dump_file;  // on the disk before the trace has its name
  const auto written = [&](const std::string& place) {
    progress.emplace("hashing", dump && !line.has("quiet"));
    if (dump) dump_file = imported_dump(layers, steps, traces::Trace(place), *dump, update);
    progress.reset();
    print_summary(layers, out, dump);
  };
  progress.emplace("importing", !line.has("quiet"));
  traces::import_trace(layers, steps, out, !dump, update, written);
  if (dump_file) dump_file->finish();
}

}  // namespace

int import_command(const Arguments& arguments) {
  CommandLine line = import_command_line();
  if (!line.parse(arguments)) return kPass;
  const bool list = line.has("list");
  for (const char* option : {"call", "request", "steps", "dump"}) {
    if (list && line.has(option)) throw UsageError(fmt::format("--{}: --list writes nothing", option));
  }
  const std::vector<std::string> places =
      line.positionals(list ? "flashinfer or DIR" : "flashinfer, DIR or OUT", list ? 2 : 3, list ? 2 : 3);
  if (places[0] != "flashinfer") {
    throw UsageError(
        fmt::format("{}: expected flashinfer, whose dumps can be imported", traces::quoted(places[0])));
  }
  std::unique_ptr<traces::RecordedSession> session;
  {
    Progress progress("reading", !line.has("quiet"));
    session = std::make_unique<traces::RecordedSession>(
        places[1], [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  if (list) {
    std::cout << listing(*session, call_options(line, *session));
  } else {
    import_flashinfer(line, *session, places[2]);
  }
  return kPass;
}

}  // namespace kvbound::sim
