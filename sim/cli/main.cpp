// The program: runs the subcommand, and turns its exceptions into an exit code and one line on standard error.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/output_file.hpp>

#include "commands.hpp"

namespace {

using namespace kvbound;
using namespace kvbound::sim;

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view meaning;
  int (*run)(const Arguments&);
};

constexpr std::array kCommands{
    Command{"inspect", "TRACE [--verify]",
            "what a trace holds, and whether its recorded outputs can be reproduced", inspect_command},
    Command{"replay", "TRACE... --policy P[,P] --budget B[,B]",
            "recorded decode steps through compression policies", replay_command},
    Command{"recall", "TRACE", "how many of the entries that matter most a score finds", recall_command},
    Command{"predict", "TRACE", "how well past scores predict the next ones", predict_command},
    Command{"diff", "TRACE DUMP", "another implementation's results against the reference", diff_command},
    Command{"record", "MODEL --tokens FILE OUT", "a trace of a Hugging Face or GGUF model", record_command},
    Command{"evaluate", "MODEL TASKS --policy P[,P] --budget B[,B]",
            "what a model says when it decodes through compressed caches", evaluate_command},
    Command{"sweep", "PLAN --out DIR", "a replay of many traces by many processes, here or on a cluster",
            sweep_command},
    Command{"gather", "DIR", "the results of a sweep as those of one replay", gather_command},
    Command{"import", "flashinfer DIR OUT", "a trace and a dump of recorded calls of FlashInfer's kernels",
            import_command},
    Command{"generate", "--kind KIND OUT", "a synthetic trace", generate_command},
    Command{"prove", "[ID...]", "searches for counterexamples to the theorems", prove_command},
    Command{"bench", "[OPERATION...]", "speed of operations, against rooflines measured in the same run",
            bench_command},
    Command{"report", "FILE.json... -o PAGE.html",
            "one offline page of figures of the JSON that the others write", report_command}};

constexpr const char* kMoreHelp =
    "\n"
    "  kvbound COMMAND --help                 all options, with examples\n"
    "  kvbound --version\n"
    "\n"
    "Matrix products use the fastest of OpenBLAS's kernels that the processor supports, or those that the\n"
    "environment variable OPENBLAS_CORETYPE names; each JSON report records which.\n"
    "\n"
    "Exit codes: 0 pass, 1 mismatch or bound violated, 2 usage, 3 invalid input, 4 I/O or resources,\n"
    "5 inconclusive, 70 internal error.\n";

std::string help() {
  constexpr size_t kColumn = 41;  // where the commands' meanings begin
  std::string text =
      "kvbound: KV-cache compression for large language models with its guarantees checked\n\n";
  for (const Command& command : kCommands) {
    const std::string call = fmt::format("  kvbound {} {}", command.name, command.arguments);
    const bool fits = call.size() + 2 <= kColumn;
    text += fits ? fmt::format("{:<{}}", call, kColumn) : call + "\n" + std::string(kColumn, ' ');
    text += fmt::format("{}\n", command.meaning);
  }
  return text + kMoreHelp;
}

int fail(ExitCode code, const std::string& message) {
  std::cerr << "kvbound: " << one_line(message) << "\n";
  return code;
}

int dispatch(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  const auto command = std::ranges::find(kCommands, name, &Command::name);
  if (command != kCommands.end()) return command->run(Arguments(arguments.begin() + 1, arguments.end()));
  if (arguments.size() > 1 && name.starts_with('-'))
    throw UsageError("unexpected argument '" + arguments[1] + "'");
  if (name == "--help" || name == "-h") {
    std::cout << help();
    return kPass;
  }
  if (name == "--version") {
    std::cout << "kvbound " << version() << " (" << revision() << ")\n";
    return kPass;
  }
  if (name.empty()) throw UsageError("no subcommand; try 'kvbound --help'");
  std::vector<std::string_view> known;
  for (const Command& one : kCommands) known.push_back(one.name);
  throw UsageError(fmt::format("no subcommand '{}'; known: {}", name, fmt::join(known, ", ")));
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

// Terminates the program by the same signal, but removes half-written files first.
extern "C" void clean_up_and_die(int signal_number) {
  traces::remove_pending_output_files();
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    // Signals that the caller ignores, as nohup does, remain ignored.
    if (std::signal(signal_number, clean_up_and_die) == SIG_IGN) std::signal(signal_number, SIG_IGN);
  }
  // A closed pipe, or a file above the size limit, is reported as a write error like any other.
  for (const int signal_number : {SIGPIPE, SIGXFSZ}) std::signal(signal_number, SIG_IGN);
  return run(Arguments(argv + 1, argv + argc));
}
