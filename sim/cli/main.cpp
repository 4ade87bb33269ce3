// The program: finds the subcommand and turns what it throws into an exit code and one line on standard
// error.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/output_file.hpp>

namespace {

using namespace kvbound;
using namespace kvbound::sim;

constexpr const char* kHelp =
    "kvbound: KV-cache compression for large language models with its guarantees checked\n"
    "\n"
    "  kvbound inspect TRACE [--verify]       what a trace holds, and whether its recorded outputs can be reproduced\n"
    "  kvbound replay TRACE... --policy P[,P] --budget B[,B]\n"
    "                                         recorded decode steps through compression policies\n"
    "  kvbound recall TRACE                   how many of the entries that matter most a score finds\n"
    "  kvbound predict TRACE                  how well past scores predict the next ones\n"
    "  kvbound diff TRACE DUMP                another implementation's results against the reference\n"
    "  kvbound generate --kind KIND OUT       a synthetic trace\n"
    "  kvbound prove [ID...]                  the theorems as properties: looks for counterexamples\n"
    "  kvbound bench [OPERATION...]           how fast, against ceilings measured in the same run\n"
    "\n"
    "  kvbound SUBCOMMAND --help              all options, with examples\n"
    "  kvbound --version\n"
    "\n"
    "Matrix products run on the fastest of OpenBLAS's kernels that the processor can run, or on those that\n"
    "OPENBLAS_CORETYPE in the environment names; each JSON report says which.\n"
    "\n"
    "Exit codes: 0 pass, 1 mismatch or bound violated, 2 usage, 3 invalid input, 4 I/O or resources,\n"
    "5 inconclusive, 70 internal error.\n";

int fail(ExitCode code, const std::string& message) {
  std::cerr << "kvbound: " << one_line(message) << "\n";
  return code;
}

int dispatch(const Arguments& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (command == "inspect") return inspect_command(rest);
  if (command == "replay") return replay_command(rest);
  if (command == "recall") return recall_command(rest);
  if (command == "predict") return predict_command(rest);
  if (command == "diff") return diff_command(rest);
  if (command == "generate") return generate_command(rest);
  if (command == "prove") return prove_command(rest);
  if (command == "bench") return bench_command(rest);
  if (arguments.size() > 1 && command.starts_with('-'))
    throw UsageError("unexpected argument '" + arguments[1] + "'");
  if (command == "--help" || command == "-h") {
    std::cout << kHelp;
    return kPass;
  }
  if (command == "--version") {
    std::cout << "kvbound " << version() << " (" << revision() << ")\n";
    return kPass;
  }
  throw UsageError(command.empty()
                       ? "no subcommand; try 'kvbound --help'"
                       : "no subcommand '" + command +
                             "'; known: inspect, replay, recall, predict, diff, generate, prove, bench");
}

int run(const Arguments& arguments) try {
  reference::use_fastest_products();  // before any thread is started
  const int code = dispatch(arguments);
  flush_standard_output();
  return code;
} catch (const UsageError& error) {
  return fail(kUsage, error.what());
} catch (const InvalidPolicy& error) {
  return fail(kUsage, error.what());
} catch (const traces::InvalidOption& error) {
  return fail(kUsage, error.what());
} catch (const TraceError& error) {
  return fail(kInvalidInput, error.what());
} catch (const NonFinite& error) {
  return fail(kInvalidInput, error.what());
} catch (const NoDevice& error) {
  return fail(kInconclusive, error.what());
} catch (const DeviceError& error) {
  return fail(kWorld, error.what());
} catch (const IoError& error) {
  return fail(kWorld, error.what());
} catch (const std::filesystem::filesystem_error& error) {
  return fail(kWorld, "cannot use " + error.path1().string() + ": " + error.code().message());
} catch (const std::bad_alloc&) {
  return fail(kWorld, "out of memory");
} catch (const std::exception& error) {
  return fail(kInternal, std::string("internal error: ") + error.what());
}

// Ends the program as the signal would have, but leaves no half-written file.
extern "C" void clean_up_and_die(int signal_number) {
  traces::remove_pending_output_files();
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    // What the caller had ignored, as nohup does, stays ignored.
    if (std::signal(signal_number, clean_up_and_die) == SIG_IGN) std::signal(signal_number, SIG_IGN);
  }
  // A closed pipe and a file over the size limit are errors of writing, reported like any other.
  for (const int signal_number : {SIGPIPE, SIGXFSZ}) std::signal(signal_number, SIG_IGN);
  return run(Arguments(argv + 1, argv + argc));
}
