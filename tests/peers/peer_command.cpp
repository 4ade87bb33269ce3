// The program kvbound_peers_native, which judges and times other libraries' kernels for `kvbound bench
// --peer`, and kvbound_peers_emulated, which does the same with a stand-in for them.
#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/bench/device_measure.hpp>
#include <kvbound/sim/bench/peer.hpp>
#include <kvbound/sim/cli/commands.hpp>
#include <kvbound/sim/options/magnitude.hpp>
#include <kvbound/sim/replay/device.hpp>
#include <kvbound/traces/messages.hpp>

#include "library_bench.hpp"
#include "peer_writer.hpp"

namespace kvbound::sim {
namespace {

using KVBOUND_CUDA_BUILD::kNative;

constexpr const char* kNoSessions = "this program has no sessions";

constexpr const char* kDetails =
    R"(Every OPERATION, by default all that the library has, is called once on the random numbers of `kvbound bench`, and `kvbound
check` judges what it computed. If that is right, it is timed as bench times its own: by the device's clock, over 10 ms of calls
that are recorded as one CUDA graph, on arguments that are not in the L2 cache. An operation whose results are wrong gets no
time, and the exit code is 1. FOLDER keeps the files that were judged, OPERATION.safetensors.
)";

const KernelLibrary& library_named(const std::string& name) {
  std::string known;
  for (const KernelLibrary& library : kernel_libraries()) {
    if (library.name == name) return library;
    known += (known.empty() ? "" : ", ") + std::string(library.name);
  }
  throw UsageError(fmt::format("no library {}; known: {}", traces::quoted(name), known));
}

std::string device_name() {
  std::string why;
  const auto device = cuda::find_device(&why);
  if (!device) throw NoDevice("no CUDA device: " + why);
  return device->name;
}

std::vector<std::string> chosen_operations(const KernelLibrary& library,
                                           const std::vector<std::string>& named) {
  const std::vector<std::string_view> known = operations_of(library);
  for (const std::string& name : named) {
    if (std::ranges::find(known, name) == known.end())
      throw UsageError(fmt::format("{} has no operation {}; known: {}", library.name, traces::quoted(name),
                                   fmt::join(known, ", ")));
  }
  return named.empty() ? std::vector<std::string>(known.begin(), known.end()) : named;
}

// Prints each operation's times, or that it has none.
std::vector<PeerOperation> timed(const KernelLibrary& library, const std::vector<std::string>& operations,
                                 const BenchOptions& options, const std::filesystem::path& folder,
                                 const std::string& judge) {
  std::vector<PeerOperation> timed;
  for (const std::string& name : operations) {
    const auto seconds = judged_seconds(library, name, options, {folder / (name + ".safetensors"), judge});
    if (!seconds) {
      std::cout << fmt::format("error: {} of {} is wrong, so it is not timed\n", name, library.name);
      continue;
    }
    const Spread all = spread(*seconds);
    std::cout << fmt::format("{} of {}: {} ({} to {})\n", name, library.name, duration_text(all.median),
                             duration_text(all.least), duration_text(all.most));
    timed.push_back({name, "", *seconds});
  }
  return timed;
}

BenchOptions bench_options(const CommandLine& line, const KernelLibrary& library) {
  BenchOptions options;
  options.shape = parse_bench_shape(line.text("shape").value_or("llama-3.1-8b"));
  options.rounds.asked = line.integer("repeats", 1, 1000, 7);
  options.seed = line.integer("seed", 0, INT64_MAX, 1);
  if (library.head_dim != 0 && library.head_dim != options.shape.layer.head_dim)
    throw UsageError(fmt::format("--shape {} has head_dim {}; {} is compiled for {}", options.shape.name,
                                 options.shape.layer.head_dim, library.name, library.head_dim));
  return options;
}

int peer_command(const Arguments& arguments) {
  CommandLine line(
      "bench LIBRARY [OPERATION...] --judge KVBOUND --calls FOLDER --json FILE [options]: another library's kernels, judged and timed",
      kDetails);
  line.add("shape", "NAME[:TOKENS]", "the layer, as for kvbound bench (default: llama-3.1-8b)");
  line.add("repeats", "N", "counted rounds (default: 7)");
  line.add("seed", "N", "seed of the random data (default: 1)");
  line.add("judge", "KVBOUND", "the program kvbound");
  line.add("calls", "FOLDER", "an existing folder for the inputs and results that are judged");
  line.add("json", "FILE", "the times, for kvbound bench --peer");
  if (!line.parse(arguments)) return kPass;
  std::vector<std::string> names = line.positionals("LIBRARY or OPERATION", 1, 16);
  const KernelLibrary& library = library_named(names.front());
  const auto operations = chosen_operations(library, {names.begin() + 1, names.end()});
  const BenchOptions options = bench_options(line, library);
  const std::string judge = line.required("judge"), calls = line.required("calls");
  const Peer peer{.path = line.required("json"),
                  .sha256 = "",
                  .name = std::string(library.name),
                  .version = library.version,
                  .device = kNative ? "cuda" : "cpu",
                  .device_name = device_name(),
                  .storage = "BF16",
                  .seed = static_cast<int64_t>(options.seed),
                  .is_reference = false,
                  .tokens = options.shape.tokens,
                  .layer = options.shape.layer,
                  .operations = timed(library, operations, options, calls, judge)};
  if (!peer.operations.empty()) {
    write_peer(peer);
  } else if (std::filesystem::is_regular_file(peer.path)) {
    std::filesystem::remove(peer.path);  // an older one's times
  }
  return peer.operations.size() == operations.size() ? kPass : kMismatch;
}

}  // namespace

std::span<const Command> commands() {
  static constexpr std::array kCommands{
      Command{Purpose::check, "bench", "LIBRARY [OPERATION...] --judge KVBOUND --calls FOLDER --json FILE",
              "another library's kernels, judged and timed", peer_command},
      Command{Purpose::help, "help", "[COMMAND]", "this help, or that of a command", help_command}};
  return kCommands;
}

// In place of the session's on a device, which would bring all kernels into this program.
DeviceSearch find_device() { return {false, "", 0, kNoSessions}; }
std::unique_ptr<Session> native_session(Dtype, OperationTimes*, int64_t) { throw NoDevice(kNoSessions); }
SessionArithmetic native_arithmetic(Dtype, const LayerShape&, int64_t, int64_t) {
  throw NoDevice(kNoSessions);
}

}  // namespace kvbound::sim
